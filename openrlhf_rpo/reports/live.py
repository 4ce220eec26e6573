"""The report's page of a run that is still training, served on this machine; the page asks for later steps.

Every answer opens the database anew, read-only and for a few queries. SQLite's readers do not block the writer, and the run
may begin, end or go back to a checkpoint between two answers.
"""

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.cache.session import place
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.reports.page import page
from openrlhf_rpo.reports.questions import Decode, Samples, details, events, names
from openrlhf_rpo.reports.run import Run, columns, evaluation_columns, read_run
from openrlhf_rpo.reports.summary import summarise
from openrlhf_rpo.reports.text import missing_samples
from openrlhf_rpo.types import Question, StepRecord

HOST = "127.0.0.1"
_OWN_NAMES = ("127.0.0.1", "localhost")
_Owner: TypeAlias = tuple[dict[str, str], str | None]


@dataclass
class LiveRun:
    """Answers to the page's requests about one run. ``samples(question_id, steps)`` reads kept samples."""

    name: str
    url: str
    decoder: Callable[[PathCache], tuple[Decode, bool]]
    """Gives a function from token ids to texts, and whether those texts are only the ids."""
    samples: Callable[[str, list[int]], Samples]
    find: Callable[[], str] | None = None
    """The URL of the cache, asked again for every answer: the folder of a run may appear later."""
    _questions: tuple[_Owner, Mapping[str, Question]] | None = None
    _records: list[StepRecord] = field(default_factory=list)
    _decode: tuple[_Owner, tuple[Decode, bool]] | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _loading: threading.Lock = field(default_factory=threading.Lock)

    def news(self, after: int, mark: str) -> dict[str, Any]:
        """What happened after step ``after`` (-1: everything); everything if the run has changed since the last answer.

        ``mark`` identifies the newest step of the last answer. An unreadable cache is part of the answer, because the next
        reading may succeed.
        """
        nothing = {"missing": True, "from": after}
        with self._reading:
            try:
                if self.find is not None:
                    self.url = self.find()
                if PathCache.is_missing(self.url):
                    return nothing | {"trouble": False, "state": f"Waiting for the run: no path cache at {self.where} yet."}
                with PathCache.open_to_read(self.url) as cache:
                    return self._news(cache, after, mark)
            except CacheError as error:
                return nothing | {"trouble": True, "state": str(error)}

    @property
    def where(self) -> str:
        """The cache's file or URL."""
        return place(self.url)[0]

    def question(self, question_id: str) -> dict[str, Any]:
        """The details of a question. Raises CacheError, ExchangeError, and KeyError for an unknown question.

        The first call loads the tokenizer, which takes seconds; ``news`` does not wait for it.
        """
        with PathCache.open_to_read(self.url) as cache:
            known = self._known(cache)
            versions = cache.versions([question_id])
            visits = cache.visits_of(question_id)
            if not versions[question_id] and not visits and question_id not in known:
                raise KeyError(question_id)
            sampled = {question_id: self.samples(question_id, [visit.step for visit in visits])}
            decode, as_ids = self._decoder(cache)
            return details(versions, known, sampled, decode)[0] | {"as_ids": as_ids}

    def _news(self, cache: CacheHistory, after: int, mark: str) -> dict[str, Any]:
        known = self._known(cache)
        run = read_run(cache, self.name, self.where, len(known), self._records)
        self._records = run.records
        if note := missing_samples(self.url, run):
            run = replace(run, notes=(note,))
        ids = sorted(known) or cache.question_ids()
        if after >= 0 and _mark(run, after) != mark:
            after = -1
        return {
            "missing": False,
            "trouble": False,
            "from": after,
            "after": run.latest_step,
            "mark": _mark(run, run.latest_step),
            "state": _state(run),
            "initial_tokens": run.initial_tokens,
            **columns(run, after),
            "evaluations": evaluation_columns(run),
            "events": events(cache, ids, after, run.latest_step),
            "summary": summarise([run]) | {"against": []},
            **({"names": names(known, ids)} if after < 0 and ids else {}),
        }

    def _known(self, cache: CacheHistory) -> Mapping[str, Question]:
        owner, last = _owner(cache), self._questions
        if last is None or last[0] != owner or not last[1]:
            last = self._questions = owner, cache.questions()
        return last[1]

    def _decoder(self, cache: PathCache) -> tuple[Decode, bool]:
        owner = _owner(cache)
        with self._loading:
            if self._decode is None or self._decode[0] != owner:
                self._decode = owner, self.decoder(cache)
            return self._decode[1]


def _owner(cache: CacheHistory) -> _Owner:
    """Identifies the run whose questions and tokenizer are kept. A new run has no model until it describes its questions."""
    return cache.fingerprints, cache.model


def _mark(run: Run, step: int) -> str:
    """Changes with the record of ``step``; before the first step with the number of cached paths or with the run."""
    record = next((r for r in reversed(run.records) if r.step == step), None)
    state = [run.cached, run.initialised, sorted(run.fingerprints.items())]
    content = state if record is None else sorted(record.metrics.items())
    return f"{zlib.crc32(repr(content).encode()):08x}"


def _state(run: Run) -> str:
    of = f" of {run.planned_steps:,}" if run.planned_steps else ""
    done = "finished" if run.planned_steps and run.latest_step >= run.planned_steps else f"step {run.latest_step:,}{of}"
    if not run.records:
        done = f"{run.cached:,} paths in the initial cache" if not run.initialised else "no step yet"
    return f"{done}, read at {datetime.now():%H:%M:%S}"


def server(run: LiveRun, document: dict[str, Any], port: int) -> ThreadingHTTPServer:
    """A server of the page on the loopback address. Raises OSError if the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Against DNS rebinding: pages of other hosts must not read the run.
            if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in _OWN_NAMES:
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This server answers localhost only.")
                return
            try:
                asked = urlsplit(self.path)
                words = {name: values[0] for name, values in parse_qs(asked.query).items()}
                self._route(asked.path, words)
            except (CacheError, ExchangeError) as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))
            except KeyError as error:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"There is no {error} here.")
            except ValueError as error:  # an address that cannot be parsed, a step that is no number
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"There is nothing at this address: {error}.")

        def _route(self, path: str, words: dict[str, str]) -> None:
            if path == "/":
                self._answer(HTTPStatus.OK, "text/html", "".join(page(document)))
            elif path == "/data":
                self._json(run.news(int(words.get("after", "-1")), words.get("mark", "")))
            elif path == "/question":
                self._json(run.question(words["id"]))
            else:
                raise KeyError(path)

        def _json(self, value: Any) -> None:
            self._answer(HTTPStatus.OK, "application/json", json.dumps(value, allow_nan=False))

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            with contextlib.suppress(ConnectionError):  # the page is closed
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep the terminal quiet."""

    return ThreadingHTTPServer((HOST, port), Handler)
