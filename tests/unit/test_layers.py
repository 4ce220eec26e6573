"""Imports point one way, the rules load nothing heavy, and no file or function grows past what one can read.

What a part of the package may import is written once: nothing that comes after it in ``ORDER``, so there is no circle, and
where ``MAY_IMPORT`` names it, only what stands there.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "openrlhf_rpo"
ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / PACKAGE).rglob("*.py"))

ORDER = [
    *("errors", "user_code", "credentials", "types", "durable", "option", "console", "tables", "rewards", "platform"),
    "upstream",
    *("algo", "config", "cache", "training", "run", "exchange", "data", "rollout", "reports"),
    *("trainer", "launch", "evaluation", "cli"),
]
HEAVY = {"torch", "ray", "vllm", "deepspeed", "transformers"}

MAY_IMPORT = {
    "algo": {"types", "option", "errors", "user_code"},
    "config": {"algo", "option", "errors"},
    "cache": {"types", "errors", "credentials", "durable"},
    "exchange": {"types", "errors", "cache", "run", "tables"},
    "training": {"types", "errors", "algo", "config", "upstream"},
    "reports": {"types", "errors", "durable", "console", "algo", "cache", "run", "exchange"},
}
"""Parts that may import only these, beside themselves."""

MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 50


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(name: str) -> str:
    """openrlhf_rpo.algo.methods.rpo -> algo; the package itself -> "" """
    return name.split(".")[1] if "." in name else ""


def imports(source: str, package: str) -> Iterator[str]:
    """Full dotted names that a file imports, wherever in it; ``package`` is what its relative imports start from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_parts(file: Path) -> set[str]:
    """The other parts of the package that a file imports."""
    name = module_name(file)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    parts = {part_of(target) for target in imports(file.read_text(), package) if target.split(".")[0] == PACKAGE}
    return {part for part in parts if part and not part.startswith("__")} - {part_of(name)}


def modules(*parts: str) -> list[str]:
    return [module_name(file) for file in FILES if part_of(module_name(file)) in parts]


def loaded_by(names: list[str]) -> set[str]:
    """Top-level packages in a fresh process after importing ``names``."""
    program = f"import sys, importlib\nfor n in {names!r}: importlib.import_module(n)\nprint(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {name.split(".")[0] for name in result.stdout.split()}


def test_the_rules_load_neither_heavy_packages_nor_sql():
    names = modules("errors", "option", "types", "config", "algo")
    assert f"{PACKAGE}.algo.methods.rpo" in names
    assert not loaded_by(names) & (HEAVY | {"sqlalchemy", "openrlhf"})


def test_the_cache_loads_no_heavy_package():
    assert not loaded_by(modules("cache")) & HEAVY


def test_every_part_has_its_place():
    assert {part_of(module_name(file)) for file in FILES} - {"", "__init__"} == set(ORDER)


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_point_one_way(file):
    part, used = part_of(module_name(file)), imported_parts(file)
    if part:
        assert not used & set(ORDER[ORDER.index(part) + 1 :])
    if part in MAY_IMPORT:
        assert used <= MAY_IMPORT[part]


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_a_file_and_a_function_can_be_read_at_once(file):
    source = file.read_text()
    assert len(source.splitlines()) <= MOST_LINES
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert [f.name for f in functions if f.end_lineno - f.lineno + 1 > MOST_LINES_OF_A_FUNCTION] == []


def test_upstream_is_imported_in_one_place():
    users = {
        module_name(file)
        for file in FILES
        if any(name.split(".")[0] == "openrlhf" for name in imports(file.read_text(), module_name(file)))
    }
    assert {name for name in users if part_of(name) not in ("upstream", "platform")} == set()


@pytest.mark.parametrize(
    ("statement", "target"),
    [
        ("import openrlhf.models", "openrlhf.models"),
        ("from openrlhf import models", "openrlhf.models"),
        ("from openrlhf_rpo import upstream", "openrlhf_rpo.upstream"),
        ("from . import draws", "openrlhf_rpo.algo.draws"),
        ("from ..cache.store import PathCache", "openrlhf_rpo.cache.store.PathCache"),
        ("def f():\n    from openrlhf_rpo.cli import main", "openrlhf_rpo.cli.main"),
        ("if TYPE_CHECKING:\n    import torch", "torch"),
    ],
)
def test_every_form_of_import_is_seen(statement, target):
    assert list(imports(statement, "openrlhf_rpo.algo")) == [target]
