"""Upgrading a database to this version's schema, with the scripts in the top-level ``alembic`` folder."""

import functools
import pathlib
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect
from sqlalchemy.orm import Session

from openrlhf_rpo.cache.columns import BadValue
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, CacheNewer, CacheOlder, cure_of
from openrlhf_rpo.cache.models import Base
from openrlhf_rpo.cache.sqlite import check_objects, check_tables, structure_damages
from openrlhf_rpo.cache.upkeep import damages


def scripts_folder() -> pathlib.Path:
    """``openrlhf_rpo/_alembic`` in a wheel, the top-level ``alembic`` in a checkout. Raises ``CacheError``."""
    package = pathlib.Path(__file__).resolve().parents[1]
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise CacheError(f"openrlhf_rpo in {package} was installed without its migration scripts. Install it again.")


def schema_state(connection: Connection, where: str) -> Literal["none", "older", "current"]:
    """The database's schema: none, older, or current.

    Raises ``CacheNewer`` for an unknown revision, ``CacheError`` for tables of another program, ``CacheCorrupt`` for
    tables unlike those this version makes.
    """
    current, head = _revisions(connection, where)
    return "none" if current is None else "current" if current == head else "older"


def upgrade(connection: Connection, where: str) -> None:
    """Make the schema, or upgrade it, in the transaction of ``connection``. ``where`` names the database in messages.

    Raises as ``schema_state`` does, and ``CacheCorrupt`` for a damaged file or rows.
    """
    state = schema_state(connection, where)
    if state == "current":
        return
    if connection.dialect.name == "sqlite" and (findings := structure_damages(connection)):
        raise CacheCorrupt(f"Path cache {where} is damaged ({findings[0]}). {cure_of(where)}")
    alembic = config()
    alembic.attributes["connection"] = connection
    if state == "none":  # in a seventh of the time that all migrations take
        Base.metadata.create_all(connection)
        command.stamp(alembic, "head")
        return
    try:
        command.upgrade(alembic, "head")
        _revisions(connection, where)
        for damage in damages(Session(connection), decode=False):  # in tables that no migration changed, too
            raise BadValue(damage)
    except BadValue as error:
        raise CacheCorrupt(f"Path cache {where} is damaged ({error}), and was not upgraded. {cure_of(where)}") from error


def check_revision(connection: Connection, where: str) -> None:
    """A reader's check. Raises ``CacheOlder`` or ``CacheNewer``, and ``CacheError`` if there is no cache."""
    current, head = _revisions(connection, where)
    if current is None:
        raise CacheError(f"{where} holds no path cache.")
    if current != head:
        raise CacheOlder(
            f"Path cache {where} has schema revision {current}, this version of openrlhf_rpo reads {head}. Resuming its "
            "run upgrades it, and so does `openrlhf-rpo cache vacuum`."
        )


def config() -> Config:
    """Alembic's config; set its connection in ``attributes``."""
    found = Config()
    found.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    return found


@functools.cache
def _known() -> tuple[str | None, frozenset[str]]:
    """(this version's revision, all that it knows)."""
    scripts = ScriptDirectory.from_config(config())
    return scripts.get_current_head(), frozenset(script.revision for script in scripts.walk_revisions())


def _revisions(connection: Connection, where: str) -> tuple[str | None, str | None]:
    """(database's, this version's). Raises as ``schema_state`` does."""
    head, known = _known()
    is_sqlite = connection.dialect.name == "sqlite"  # anyone may have made the file
    if is_sqlite:
        check_objects(connection, where)
    try:
        current = MigrationContext.configure(connection).get_current_revision()
    except CommandError as error:
        raise CacheCorrupt(f"Path cache {where} has several schema revisions ({error}). {cure_of(where)}") from error
    if current is None and set(inspect(connection).get_table_names()) - {"alembic_version"}:
        raise CacheError(f"{where} is not a path cache. Use another --rpo.cache.url.")
    if current is not None and current not in known:
        raise CacheNewer(
            f"Path cache {where} has schema revision {current}, this version of openrlhf_rpo knows up to {head}. "
            "Install the version that wrote it, or a later one."
        )
    if current == head and is_sqlite:
        check_tables(connection, where, Base.metadata)
    return current, head
