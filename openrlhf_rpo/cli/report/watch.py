"""``openrlhf-rpo watch``: a run in the browser while it trains."""

import contextlib
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.report.sources import names, shown, source, url_now
from openrlhf_rpo.cli.report.text import decoder, sample_folder, samples_of
from openrlhf_rpo.exchange.errors import ExchangeError
from openrlhf_rpo.reports.live import HOST, LiveRun, server
from openrlhf_rpo.reports.page import PART
from openrlhf_rpo.reports.plots import plots_document
from openrlhf_rpo.reports.questions import Decode, Samples
from openrlhf_rpo.upstream import UsageError


def watch(args: Namespace) -> int:
    """Serve until it is interrupted."""
    if args.interval < 0.2:
        raise UsageError(f"--interval {args.interval:g}: at least 0.2 seconds")
    one = source(args.runs[0], must_exist=False)
    if one.url is None:
        raise UsageError(
            f"{args.runs[0]} holds event files only, as a plain run leaves them: watch it with `tensorboard --logdir "
            f"{one.events}`, or write a report of it"
        )
    run = live_run(names([one])[0], one.text, args.tokenizer)
    if PathCache.is_missing(one.url):
        print(f"There is no path cache at {shown(one)} yet: the page shows the run as soon as there is one.", flush=True)
    else:
        with PathCache.open_to_read(one.url) as cache:  # what cannot be read is said now
            if args.tokenizer is not None:
                run.decoder(cache)
    try:
        serving = server(run, _document(run.name, shown(one), args.interval), args.port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {args.port} cannot be used ({error}): choose another one, or 0 for a free one") from error
    signal.signal(signal.SIGTERM, _interrupt)  # as service managers end a server, and shells one in the background
    with serving:
        print(f"Watching {shown(one)} at http://{HOST}:{serving.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print("", file=sys.stderr)
    return 0


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def live_run(name: str, text: str, model: str | None) -> LiveRun:
    """The run that ``text`` names as its page is told of it, texts by the tokenizer of ``model`` (default: its own)."""
    find = partial(url_now, text)

    def decode_and_note(cache: PathCache) -> tuple[Decode, bool]:
        with _as_cache_errors():
            decode, note = decoder(cache, model)
        return decode, bool(note)

    def samples(question_id: str, steps: list[int]) -> Samples:
        with _as_cache_errors():
            return samples_of(sample_folder(find()), question_id, steps)

    return LiveRun(name, find(), decode_and_note, samples, find)


@contextlib.contextmanager
def _as_cache_errors() -> Iterator[None]:
    """``reports`` knows the errors of the cache only: what a tokenizer or a file lacks becomes one, which the page shows."""
    try:
        yield
    except ExchangeError as error:
        raise CacheError(str(error)) from error


def _document(name: str, place: str, interval: float) -> dict[str, Any]:
    empty = {"runs": [], "notes": [], "against": [], "options": {"runs": [], "rows": []}}
    run = {"name": name, "place": place, "initial_tokens": 0, "steps": [], "series": {}, "questions": None}
    return {
        "title": name,
        "made": place,
        "live": {"interval": interval},
        "part": PART,
        "notes": [],
        "plots": plots_document(),
        "summary": empty,
        "runs": [run | {"evaluations": {"steps": [], "series": {}}}],
    }
