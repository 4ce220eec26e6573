"""Passwords and tokens stay out of command lines, messages and stored options.

A command line is in the process list, in shell histories and in what loggers store. So a URL in it may hold only parts that
are never secret; one with an unknown part is refused, without quoting it.
"""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from openrlhf_rpo.errors import UsageError

_POSTGRES = re.compile(
    r"postgresql\+psycopg://([\w.@+$-]*@)?([\w.,-]*|\[[0-9a-f:]+\])(:[0-9]{1,5})?(/[\w.+$~-]*)?", re.IGNORECASE
)
_PLAIN = r"[\w./,~-]*"
_PARAMETERS = {
    **dict.fromkeys(("service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey"), _PLAIN),
    **dict.fromkeys(("connect_timeout", "target_session_attrs"), _PLAIN),
    "port": "[0-9,]*",
    "host": _PLAIN + "(:[0-9]{1,5})?",
    "user": r"[\w.@+$-]*",
    "options": r"(-c ?|--)search_path=[\w,]+",
}
"""Parameters of libpq that a URL may hold, and their values. Others, such as ``password``, are refused."""

_URL = re.compile(r"(?:^|[=,:])\s*([a-z][\w+.-]*:/.*)", re.IGNORECASE | re.DOTALL)
_LOGIN = re.compile(r"(?:^|[=,]|//)[^/\s:@=,]+:[^\s@/]+@(?!\d+$)[\w.\[-]")  # USER:PASSWORD@HOST; but not a place @STEP
_SECRET = r"(password|passwd|token|secret|api_?key)"
_SETTING = re.compile(rf"{_SECRET}\s*=", re.IGNORECASE)
_ALONE = re.compile(rf"([\w.-]+=)?{_SECRET}=[^\s{{}}]+", re.IGNORECASE)
_BESIDE = re.compile(r"\b(host|hostaddr|port|user|dbname|service)\s*=", re.IGNORECASE)  # as in host=HOST password=PASSWORD
_AT_STEP = re.compile(r"([^:]+://[^/]*/[^@]*)@\d+")  # URL@STEP, as in --rpo.init.source

_DATABASE_FORM = (
    f"give postgresql+psycopg://USER@HOST:PORT/DATABASE, after ? only {', '.join(sorted(_PARAMETERS))} (options: a "
    "search_path). A password belongs in ~/.pgpass or PGPASSWORD, anything else in a connection service file or the PG... "
    "variables"
)
_OTHER_FORM = (
    "give it without user, password, ? and #. The login of a reward server belongs in ~/.netrc, the password of a database "
    "in ~/.pgpass or PGPASSWORD"
)


def refuse_credentials(words: Sequence[str]) -> None:
    """Raises UsageError if a URL among the words of a command could hold a secret, before anything quotes or stores it."""
    for before, word in zip(["", *words], words, strict=False):
        if why := objection(word):
            option = next((w.partition("=")[0] for w in (word, before) if w.startswith("--")), "an argument")
            raise UsageError(f"{option}: this URL is refused, because it could hold a password or token: {why}")


def objection(text: str) -> str | None:
    """What to write instead of a URL that could hold a secret, without quoting it; None if ``text`` holds none."""
    found = _URL.search(text)
    if found is None:
        setting = _ALONE.fullmatch(text) or (_SETTING.search(text) and _BESIDE.search(text))
        return _OTHER_FORM if setting or _LOGIN.search(text) else None
    url = found[1]
    if url.lower().startswith("postgres"):
        at_step = _AT_STEP.fullmatch(url)
        return None if is_plain_postgres(at_step[1] if at_step else url) else _DATABASE_FORM
    if url.startswith("sqlite:///"):
        return _OTHER_FORM if set("?#") & set(url) else None
    return _OTHER_FORM if set("@?#;&=") & set(unquote(url)) else None


def is_plain_postgres(url: str) -> bool:
    """Whether every part of a PostgreSQL URL is known never to be a secret, so that all of it can be shown."""
    head, _, query = url.partition("?")
    return bool(_POSTGRES.fullmatch(unquote(head))) and all(
        name in _PARAMETERS and re.fullmatch(_PARAMETERS[name], value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
