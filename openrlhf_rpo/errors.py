"""Errors for the user: their base class, and the one place that prints them and sets the exit status."""

import io
import os
import re
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable


class UserError(Exception):
    """Printed without a traceback. The message says what is wrong, where, and what to do. Ends the command with status 1."""


class OptionError(UserError):
    """An ``--rpo.*`` option has an invalid value."""


class UsageError(UserError):
    """Arguments contradict each other, or name something that is missing or of the wrong kind."""


def need(condition: object, message: str) -> None:
    """Raises UsageError with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


class UpstreamError(UserError):
    """OpenRLHF is missing, or its version is unsupported."""


class ExchangeError(UserError):
    """A file or other source of paths cannot be read or written."""


class Failed(UserError):
    """The command started but could not finish."""


_HARMLESS = "\n\t"
# Control, format (direction overrides, zero width), surrogate and private characters, line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def visible(text: str) -> str:
    """The text with every character that could control a terminal escaped."""
    return "".join(
        c.encode("unicode_escape").decode() if c not in _HARMLESS and unicodedata.category(c) in _UNSAFE else c for c in text
    )


def reason_of(error: BaseException) -> str:
    """The first line of an error's message; the name of its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# Any login, except a user alone in a path cache's URL: messages give such URLs to be used as they are.
_LOGIN = re.compile(r"(?<!postgresql\+psycopg:)//[^/\s'\"]*@|//[^/\s'\"]*:[^/\s'\"]*@")
_QUERY = re.compile(r"(://[^\s?#'\"]*)[?#][^\s'\"]*=[^\s'\"]*")


def without_credentials(text: str) -> str:
    """The text, which may quote other packages' errors, with logins and queries of its URLs hidden."""
    return _QUERY.sub(r"\1?***", _LOGIN.sub("//***@", text))


def end_on_term() -> None:
    """Let TERM (from a scheduler, a lost machine or ``kill``) end this process as Ctrl-C does: it leaves nothing behind,
    and says what is safe. Signals reach the main thread only."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit status: 1 after a ``UserError`` or an operating system error, which are
    printed, and silently when nobody reads the output (``| head``); 130 after Ctrl-C or TERM."""
    end_on_term()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may not be encodable
    try:
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except UserError as error:
        return _failed(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it ends
        return 1
    except OSError as error:
        if error.errno is None:  # from a package, not the operating system
            raise
        return _failed(": ".join(str(part) for part in (error.filename, error.strerror) if part is not None))
    except KeyboardInterrupt as interrupt:  # its message, if any, says what is safe
        print(f"interrupted\n{interrupt}".strip(), file=sys.stderr, flush=True)
        return 130


def _failed(message: str) -> int:
    print(f"error: {visible(without_credentials(message))}", file=sys.stderr, flush=True)
    return 1
