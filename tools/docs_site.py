"""Hooks for mkdocs, beside mkdocs.yml: files of the repository that pages link to become part of the site.

Links in a page are written for a reader of the repository, relative to the page's own file. A file below ``docs`` keeps
its place in the site without that folder; every other one keeps its path. A link that leads nowhere, and a page that would
fetch something from another host, are warnings, at which ``mkdocs build --strict`` stops.
"""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\"\s#]+)(#[^)\"\s]*)?(?=[)\"])")
FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?https?://[^\s>]*")
log = logging.getLogger("mkdocs.plugins.docs_site")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the navigation and the link targets that lie outside ``docs``, and what these link to in turn."""
    waiting = [place for place in _nav(config.nav) if files.get_file_from_path(place) is None]
    waiting += [target for page in files.documentation_pages() for target in _targets(page)]
    while waiting:
        place = waiting.pop()
        if files.get_file_from_path(place) is not None or not (ROOT / place).is_file():
            continue  # mkdocs warns of missing files
        file = File.generated(config, place, abs_src_path=str(ROOT / place))
        files.append(file)
        if file.is_documentation_page():
            waiting += _targets(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between the repository's files into links between the site's."""
    here = os.path.dirname(page.file.src_uri) or "."

    def in_site(match: re.Match[str]) -> str:
        target = _in_site(page.file, match[2])
        return match[0] if target is None else f"{match[1]}{os.path.relpath(target, here)}{match[3] or ''}"

    return LINK.sub(in_site, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """A docstring's ``::`` before an indented block reads as a colon."""
    return html.replace("::</p>", ":</p>")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """A page must be readable without a network."""
    for tag in FETCHED.findall(output):
        log.warning("%s fetches something from another host: %s", page.file.src_uri, tag)
    return output


def _nav(entry: Any) -> Iterator[str]:
    """Every path in the navigation."""
    if isinstance(entry, str):
        yield entry
    elif entry:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _nav(inner)


def _targets(page: File) -> list[str]:
    """Where in the site the links of a page lead."""
    text = Path(page.abs_src_path or "").read_text(encoding="utf-8")
    return [place for _, target, _ in LINK.findall(text) if (place := _in_site(page, target)) is not None]


def _in_site(page: File, target: str) -> str | None:
    """The place in the site of a link's target; None for another host."""
    if ":" in target:
        return None
    folder = os.path.dirname(os.path.relpath(page.abs_src_path or "", ROOT))
    place = os.path.normpath(os.path.join(folder, target))
    return place.removeprefix("docs" + os.sep)
