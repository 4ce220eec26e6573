"""The documentation agrees with the code: options, paths, links, figures' names, the picture."""

import argparse
import ast
import importlib.util
import random
import re
import shlex
import threading
import xml.etree.ElementTree as ET
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_rpo import __version__, types
from openrlhf_rpo.algo.methods import METHODS, Cut, Scored, method_class, option_names
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.launch.options import build_parser, parse
from openrlhf_rpo.rollout.http_rewards import HttpRewards
from openrlhf_rpo.rollout.reward_call import RewardRequest, read_answer

ROOT = Path(__file__).parents[2]
AT_THE_TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*AT_THE_TOP, ROOT / "examples" / "README.md"] + sorted((ROOT / "docs").rglob("*.md"))
WRITTEN = [page for page in PAGES if page.name != "options.md"]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"")
OPTION = re.compile(r"--[a-z]+\.[a-z0-9_.]*[a-z0-9_]")
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = "openrlhf_rpo.cli.train_rpo_ray"
PLACE = re.compile(r"[a-z_.]+/[\w./]*|[\w.]+\.(?:py|md|sh|toml|lock)")
FIGURE = re.compile(r"`(rpo/[a-z_/]+)`")
PACKAGE_PARTS = {path.name for path in (ROOT / "openrlhf_rpo").iterdir()}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def write_options():
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "tools" / "write_options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_options_is_up_to_date():
    tool = write_options()
    assert tool.FILE.read_text() == tool.options_page(), f"out of date: {tool.COMMAND}"


def test_every_option_is_on_the_page():
    page = (ROOT / "docs" / "options.md").read_text()
    for action in build_parser()._actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        assert action.dest == "help" or f"| {names} |" in page


def test_an_option_of_a_method_is_shown_with_each_methods_default():
    page = (ROOT / "docs" / "options.md").read_text()
    for name, kind in METHODS.items():
        for field, option in option_names(kind).items():
            [row] = [line for line in page.splitlines() if line.startswith(f"| `--rpo.{option}` |")]
            assert f"{name} `{getattr(kind(), field)}`" in row.split(" | ")[1]


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_option_that_is_named_exists(page, tmp_path):
    known = {name for action in build_parser()._actions for name in action.option_strings}
    (tmp_path / "shortest.py").write_text(own_method())
    for file in [*(ROOT / "examples" / "methods").glob("*.py"), tmp_path / "shortest.py"]:
        known |= {f"--rpo.{name}" for name in option_names(method_class(f"{file}:{file.stem.capitalize()}")).values()}
    assert set(OPTION.findall(page.read_text())) - known == set()


def blocks(page: Path, language: str) -> list[str]:
    return [block for name, block in BLOCK.findall(page.read_text()) if name == language]


def code(page: Path) -> list[str]:
    """Everything that a page shows as code: fenced blocks, indented lines, spans, which may run over a line's end."""
    text = page.read_text()
    rest = BLOCK.sub("", text)
    indented = re.findall(r"^ {4,}(.*)$", rest, re.MULTILINE)
    return [block for _, block in BLOCK.findall(text)] + indented + re.findall(r"`([^`]+)`", rest)


def values(action: argparse.Action) -> set[str] | None:
    """What an option may be given; None when that is open, or when it is a flag."""
    if isinstance(action.default, bool) and action.nargs != 0:
        return {"true", "false"}
    return set(action.choices) if action.choices else None


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_value_that_is_named_is_one_of_the_options(page):
    closed = {name: values(action) for action in build_parser()._actions for name in action.option_strings}
    wrong = []
    for text in code(page):
        for option, value in re.findall(r"(--[a-z]+\.[a-z_.]+)[\s=]+([a-z][\w|-]*)", text):
            allowed = closed.get(option)
            wrong += [(option, word) for word in value.split("|") if allowed is not None and word not in allowed]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file(page):
    targets = {a or b for a, b in LINK.findall(page.read_text())}
    local = {target for target in targets if "://" not in target}
    assert {target for target in local if not (page.parent / target).exists()} == set()


@pytest.mark.parametrize("page", [page for page in WRITTEN if blocks(page, "bash")], ids=named)
def test_the_command_line_accepts_every_training_command(page):
    """Those of the README are looked at more closely in tests/unit/examples."""
    for block in blocks(page, "bash"):
        words = shlex.split(block.replace("\\\n", " "))
        if MODULE in words:
            assert isinstance(parse(words[words.index(MODULE) + 1 :]), SimpleNamespace)


def examples_of_rewards(containing: str) -> dict:
    [source] = [block for block in blocks(ROOT / "docs" / "rewards.md", "python") if containing in block]
    scope: dict = {"__name__": "example"}
    exec(source, scope)
    return scope


def test_the_reward_file_of_the_page_keeps_the_contract():
    reward_func = examples_of_rewards("def reward_func")["reward_func"]
    answers = [read_answer(reward_func([f"6 x 7?{path}<end>"], ["6 x 7?"], ["42"])) for path in ("So 42.", "42, or 43?")]
    assert [answer.score for answer in answers] == [1.0, 0.0]


def test_the_reward_server_of_the_page_answers_as_it_is_asked():
    handler = examples_of_rewards("BaseHTTPRequestHandler")["Rewards"]
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    requests = [RewardRequest(str(i), rf"1+1?\boxed{{{i}}}<end>", "1+1?", "2", rf"\boxed{{{i}}}", 5) for i in (2, 3)]
    try:
        results = HttpRewards([f"http://127.0.0.1:{server.server_port}"], timeout=10).score(requests)
    finally:
        server.shutdown()
        server.server_close()
    assert [(result.score, result.failure) for result in results] == [(1.0, None), (0.0, None)]


@pytest.mark.parametrize("page", [page for page in WRITTEN if blocks(page, "python")], ids=named)
def test_every_example_in_python_is_python(page):
    for block in blocks(page, "python"):
        ast.parse(block)


def own_method() -> str:
    """The example of the page on methods."""
    [example] = blocks(ROOT / "docs" / "methods.md", "python")
    return example


def test_the_method_of_the_page_on_methods_can_be_used(tmp_path):
    (tmp_path / "shortest.py").write_text(own_method())
    words = {
        "rpo.method": f"{tmp_path}/shortest.py:Shortest",
        "rpo.redo.share": "0.5",
        "rpo.reward.functions": "math",
        "actor.model_name_or_path": "model",
        "data.prompt_dataset": "data.jsonl",
        "vllm.num_engines": "1",
    }
    args = parse([word for name, value in words.items() for word in (f"--{name}", value)])
    method = RPOConfig.from_namespace(args.rpo).method
    path = types.Path("q", tuple(range(40)), None, "stop", 1.0, 1.0)
    assert method.cuts(Cut((path,) * 3, random.Random(0))) == (20, 20, 20)
    group = Scored((1.0, 0.0, 1.0), (1.0, 0.0, 1.0), (30, 10, 20), True, random.Random(0))
    assert method.store(group).samples == {0: 2}


def test_every_method_is_on_the_page_on_methods():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert {name for name in METHODS if f"| `{name}`" not in page} == set()
    own = {path.name for path in (ROOT / "examples" / "methods").glob("*.py")}
    assert own and {name for name in own if f"| `{name}:" not in page} == set()


def sources() -> list[Path]:
    return [path for folder in ("openrlhf_rpo", "lab") for path in (ROOT / folder).rglob("*.py")]


@cache
def texts_of_the_code() -> list[str]:
    """Every text in the package as it is written there, a gap for each value that is put in; on one line."""
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("\0".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values))
    return [" ".join(text.split()) for text in found]


def messages() -> list[tuple[str, str]]:
    """(page, message) of the first column of every table whose header begins with "message"."""
    found = []
    for page in WRITTEN:
        for table in re.findall(r"^\| message.*\n\|[ |-]+\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
            found += [(named(page), CODE.findall(row.split(" | ")[0])[0]) for row in table.splitlines()]
    return found


@pytest.mark.parametrize(("page", "message"), messages())
def test_every_message_that_is_quoted_is_one_of_the_code(page, message):
    """ "..." stands for what varies or is left out; the pieces between come in this order in one text of the code."""
    pieces = [piece.strip() for piece in message.split("...") if piece.strip()]
    assert sum(map(len, pieces)) >= 10, "too short to be found by"
    pattern = re.compile(".*".join(map(re.escape, pieces)))
    assert any(pattern.search(text) for text in texts_of_the_code()), pieces


def test_messages_are_looked_at():
    assert len(messages()) > 50


def test_everything_in_the_table_of_places_exists():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    places = [text for text in CODE.findall(table) if PLACE.fullmatch(text)]
    assert len(places) > 15
    assert {p for p in places if not (ROOT / p).exists() and not (ROOT / "openrlhf_rpo" / p).exists()} == set()
    assert {name for name in PACKAGE_PARTS if "__" not in name and name != "py.typed"} <= {
        part for place in places for part in place.split("/")
    }


def test_every_function_in_the_table_of_places_exists():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    functions = [text.removesuffix("()").split(".")[-1] for text in CODE.findall(table) if text.endswith("()")]
    source = "".join(path.read_text() for path in sources())
    assert functions and {name for name in functions if f"def {name}(" not in source} == set()


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_figure_that_is_named_is_recorded_by_the_code(page):
    files = (path for path in (ROOT / "openrlhf_rpo").rglob("*.py") if path.name != "catalogue.py")
    source = "".join(path.read_text() for path in files)
    for name in FIGURE.findall(page.read_text()):
        assert f'"{name}"' in source or f'"{name.removeprefix("rpo/cache/")}"' in source, name


def test_every_rule_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "algo.md").read_text()
    rules = (ROOT / "openrlhf_rpo" / "algo").rglob("*.py")
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in rules if path.name != "__init__.py"]
    assert {name for name in names if f"::: {name}\n" not in page} == set()


def test_the_citation_is_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_picture_is_well_formed_and_needs_nothing_from_elsewhere():
    picture = ROOT / "docs" / "loop.svg"
    root = ET.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"https?://\S+?(?=[\"'])", picture.read_text()) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in picture.read_text()
