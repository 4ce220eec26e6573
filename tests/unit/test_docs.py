"""The documentation agrees with the code: options, paths, links, figures' names, the picture."""

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from openrlhf_rpo.cli.options import build_parser
from openrlhf_rpo.rollout.reward_call import read_answer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").glob("*.md"))
WRITTEN = [page for page in PAGES if page.name != "options.md"]
LINK = re.compile(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"")
OPTION = re.compile(r"--[a-z]+\.[a-z_.]*[a-z_]")
CODE = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"[a-z_.]+/[\w./]*|[\w.]+\.(?:py|md|sh|toml|lock)")
FIGURE = re.compile(r"`(rpo/[a-z_/]+)`")
PACKAGE_PARTS = {path.name for path in (ROOT / "openrlhf_rpo").iterdir()}


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
        assert action.dest == "help" or all(f"| `{name}` |" in page for name in action.option_strings)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_option_that_is_named_exists(page):
    known = {name for action in build_parser()._actions for name in action.option_strings}
    assert set(OPTION.findall(page.read_text())) - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    targets = {a or b for a, b in LINK.findall(page.read_text())}
    local = {target for target in targets if "://" not in target}
    assert {target for target in local if not (page.parent / target).exists()} == set()


def test_the_reward_file_of_the_readme_keeps_the_contract():
    """As it is called: one query with its special tokens, one prompt, one label."""
    scope: dict = {}
    exec(re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1], scope)
    answers = [scope["reward_func"]([f"<user>1+1?{path}<end>"], ["<user>1+1?"], ["2"]) for path in (r"\boxed{2}", "2")]
    assert [read_answer(answer).score for answer in answers] == [1.0, 0.0]


def test_everything_in_the_table_of_places_exists():
    table = (ROOT / "README.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    places = [text for text in CODE.findall(table) if PLACE.fullmatch(text)]
    assert len(places) > 15
    assert {p for p in places if not (ROOT / p).exists() and not (ROOT / "openrlhf_rpo" / p).exists()} == set()
    assert {name for name in PACKAGE_PARTS if "__" not in name and name != "py.typed"} <= {
        part for place in places for part in place.split("/")
    }


def test_every_function_in_the_table_of_places_exists():
    table = (ROOT / "README.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    functions = [text.removesuffix("()").split(".")[-1] for text in CODE.findall(table) if text.endswith("()")]
    source = "".join(path.read_text() for path in (ROOT / "openrlhf_rpo").rglob("*.py"))
    assert functions and {name for name in functions if f"def {name}(" not in source} == set()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_figure_that_is_named_is_recorded_by_the_code(page):
    source = "".join(path.read_text() for path in (ROOT / "openrlhf_rpo").rglob("*.py"))
    for name in FIGURE.findall(page.read_text()):
        assert f'"{name}"' in source or f'"{name.removeprefix("rpo/cache/")}"' in source, name


def test_the_picture_is_well_formed_and_needs_nothing_from_elsewhere():
    picture = ROOT / "docs" / "loop.svg"
    root = ET.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"https?://\S+?(?=[\"'])", picture.read_text()) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in picture.read_text()
