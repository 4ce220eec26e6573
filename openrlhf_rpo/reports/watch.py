"""``openrlhf-rpo watch``: a run in the browser while it trains."""

import shlex
import sys
from argparse import Namespace
from functools import partial
from typing import Any

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.reports.live import HOST, LiveRun, server
from openrlhf_rpo.reports.page import document
from openrlhf_rpo.reports.questions import Decode, Samples
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.reports.sources import names, shown, source, url_now
from openrlhf_rpo.reports.summary import summarise
from openrlhf_rpo.reports.text import decoder, sample_folder, samples_of

_DAY = 86_400  # seconds


def watch(args: Namespace) -> int:
    """Serve until interrupted."""
    if not 0.2 <= args.interval <= _DAY:  # also refuses nan
        raise UsageError(f"--interval {args.interval:g}: from 0.2 to {_DAY} seconds")
    one = source(args.runs[0], must_exist=False)
    if one.url is None:
        raise UsageError(
            f"{args.runs[0]} holds event files only, as a plain run leaves them: watch it with `tensorboard --logdir "
            f"{shlex.quote(str(one.events))}`, or write a report of it"
        )
    run = live_run(names([one])[0], one.text, args.tokenizer)
    if PathCache.is_missing(one.url):
        print(f"There is no path cache at {shown(one)} yet: the page will show the run once it begins.", flush=True)
    else:
        with PathCache.open_to_read(one.url) as cache:  # an unreadable cache or tokenizer is an error now
            if args.tokenizer is not None:
                run.decoder(cache)
    try:
        serving = server(run, empty_document(run.name, shown(one), args.interval), args.port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port {args.port} cannot be used ({error}): choose another one, or 0 for a free one") from error
    with serving:
        print(f"Watching {shown(one)} at http://{HOST}:{serving.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print("", file=sys.stderr)
    return 0


def live_run(name: str, text: str, model: str | None) -> LiveRun:
    """The run that ``text`` names, with texts from the tokenizer of ``model`` (default: the run's own)."""
    find = partial(url_now, text)

    def decode_and_note(cache: PathCache) -> tuple[Decode, bool]:
        decode, note = decoder(cache, model)
        return decode, bool(note)

    def samples(question_id: str, steps: list[int]) -> Samples:
        return samples_of(sample_folder(find()), question_id, steps)

    return LiveRun(name, find(), decode_and_note, samples, find)


def empty_document(name: str, place: str, interval: float) -> dict[str, Any]:
    """The page before its first answer."""
    run = Run(name, place, "rpo", [], [])
    return document(name, place, [run], live={"interval": interval}) | {"summary": summarise([])}
