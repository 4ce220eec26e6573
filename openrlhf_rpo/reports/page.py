"""One self-contained HTML file: code and styles from ``web/``, and the data of the runs.

Text from models and data sets is data, never markup. It is stored as JSON with every ``<`` escaped, or gzipped in base64, in
script elements that no browser executes, and the page inserts it as text. The content security policy allows only the page's
own code (by its hash) and no requests, as a second line of defence.

The index of the questions is one compressed part. Their details are parts of ``PART`` questions each, unpacked on demand:
10,000 questions open as fast as ten.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any, NamedTuple

from openrlhf_rpo.reports.plots import PLOTS
from openrlhf_rpo.reports.run import Run, columns, evaluation_columns
from openrlhf_rpo.reports.summary import summarise

PART = 64
"""Questions per compressed part of the details."""

_SCRIPTS = ("base.js", "store.js", "overview.js", "lines.js", "plots.js", "list.js", "question.js", "main.js")
_STYLES = ("vendor/uPlot.min.css", "style.css")


class Part(NamedTuple):
    """A part of the page's data, and the id of its element."""

    name: str
    content: Any


def document(title: str, made: str, runs: Sequence[Run], *, live: Any = None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """What the page shows apart from questions. ``made``: the line below the title; ``live``: how often to ask for news."""
    return {
        "title": title,
        "made": made,
        "live": live,
        "part": PART,
        "notes": list(notes),
        "plots": [asdict(plot) for plot in PLOTS],
        "summary": summarise(runs),
        "runs": [
            {
                "name": run.name,
                "place": run.place,
                "initial_tokens": run.initial_tokens,
                **columns(run),
                "evaluations": evaluation_columns(run),
                "questions": None,
            }
            for run in runs
        ],
    }


def page(content: dict[str, Any], parts: Iterable[Part] = ()) -> Iterator[str]:
    """The page in pieces, in order. A live page may fetch later steps from its own server."""
    style = "\n".join(_text(name) for name in _STYLES)
    script = "\n".join([_text("vendor/uPlot.iife.min.js"), '(() => {\n"use strict";', *map(_text, _SCRIPTS), "})();"])
    policy = "; ".join(
        [
            *("default-src 'none'", "base-uri 'none'", "form-action 'none'", "img-src data:"),
            *(f"script-src {_hash(script)}", f"style-src {_hash(style)}"),
            *(["connect-src 'self'"] if content["live"] else []),
        ]
    )
    head, rest = _text("page.html").split("<!-- data -->")
    yield (
        head.replace("<!-- title -->", html.escape(content["title"]))
        .replace("<!-- policy -->", html.escape(policy))
        .replace("<!-- style -->", f"<style>{style}</style>")
    )
    yield f'<script type="application/json" id="document">{safe_json(content)}</script>\n'
    for part in parts:
        yield f'<script type="application/octet-stream" id="{html.escape(part.name)}">{packed(part.content)}</script>\n'
    yield rest.replace("<!-- script -->", f"<script>{script}</script>")


def safe_json(value: Any) -> str:
    """JSON with every ``<`` escaped, so that it cannot hold markup."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def packed(value: Any) -> str:
    """Gzipped JSON in base64, which ``unpack`` in store.js reads."""
    content = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(content.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _text(name: str) -> str:
    return files("openrlhf_rpo.reports").joinpath("web", *name.split("/")).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
