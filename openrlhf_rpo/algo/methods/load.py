"""Load a user's method, FILE.py:NAME."""

import functools
import inspect
import os
import re
from typing import TypeVar

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.user_code import execute

T = TypeVar("T")


class MethodError(UsageError):
    """The method does not exist or cannot be loaded."""


@functools.cache  # always the same class object within a process
def load(spec: str, base: type[T]) -> type[T]:
    """The class that ``spec``, FILE.py:NAME, names. Raises MethodError if it is missing or not a subclass of ``base``."""
    file, _, name = spec.rpartition(":")
    if not os.path.isfile(file):
        raise MethodError(f"--rpo.method {spec}: there is no file {file!r}; a method of your own is FILE.py:NAME")
    try:
        module = execute(re.sub(r"\W", "_", f"rpo_method_{os.path.abspath(file)}"), file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything, also SystemExit
        raise MethodError(f"--rpo.method {spec}: {file} cannot be imported: {type(error).__name__}: {error}") from error
    if name not in vars(module):
        raise MethodError(f"--rpo.method {spec}: {file} has no {name!r}")
    found = vars(module)[name]
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise MethodError(f"--rpo.method {spec}: {name!r} is no subclass of {base.__module__}.{base.__qualname__}")
    return found
