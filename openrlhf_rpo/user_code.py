"""A user's Python file as a module: a method or a reward function."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType


class _Loader(SourceFileLoader):
    """Leaves no ``__pycache__`` beside the file, which a command that is refused must not touch."""

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Do not store the bytecode."""


def execute(name: str, file: str) -> ModuleType:
    """The module ``name``, made by executing ``file``. Raises whatever the file raises."""
    loader = _Loader(name, file)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look up the file's classes
    loader.exec_module(module)
    return module
