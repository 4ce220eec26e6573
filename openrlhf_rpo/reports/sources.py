"""What RUN names: a path cache, as in ``openrlhf-rpo cache``, or the event files of a plain run; and its short name."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from openrlhf_rpo.cache.session import place
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.exchange.places import cache_place
from openrlhf_rpo.exchange.sources import database_url
from openrlhf_rpo.reports.event_files import event_folder
from openrlhf_rpo.run.checkpoints import CACHE_FILE

CHECKPOINTS = "checkpoints"
_NAMED = re.compile(r"([^/:=]+)=(.+)")
_GENERIC = {CHECKPOINTS, "tensorboard", "run", "runs", CACHE_FILE, ""}


class Source(NamedTuple):
    """The URL of a run's cache, or the folder of its event files."""

    text: str
    name: str | None
    url: str | None
    events: Path | None


def source(text: str, must_exist: bool = True) -> Source:
    """The source that RUN or NAME=RUN names. Raises UsageError without one."""
    name, where = _name_and_place(text)
    url = database_url(where)
    if "://" in where or os.path.isfile(url.removeprefix("sqlite:///")):
        return Source(text, name, cache_place(where) if must_exist else url, None)
    events = event_folder(where)
    if events is None and must_exist:
        there = "there is no such file or folder" if not os.path.exists(where) else "it holds neither"
        raise UsageError(
            f"{where}: no path cache ({CACHE_FILE}) and no TensorBoard event files, {there}. Give a run's --ckpt.path, its "
            "cache file or URL; of a plain run (--rpo.enable false) its --logger.tensorboard_dir"
        )
    return Source(text, name, None if events else url, events)


def url_now(text: str) -> str:
    """The URL of the cache that RUN or NAME=RUN names. It may change once the folders of the run exist."""
    return database_url(_name_and_place(text)[1])


def _name_and_place(text: str) -> tuple[str | None, str]:
    named = _NAMED.fullmatch(text)
    name, where = (named[1], named[2]) if named and not os.path.exists(text) else (None, text)
    inside = os.path.join(where, CHECKPOINTS)
    if os.path.isfile(os.path.join(inside, CACHE_FILE)) and not os.path.isfile(os.path.join(where, CACHE_FILE)):
        where = inside
    return name, where


def names(sources: Sequence[Source]) -> list[str]:
    """Their given names, or the parts of their places that tell them apart."""
    places = [_parts(source) for source in sources]
    common = 0
    while all(len(parts) > common + 1 for parts in places) and len({parts[common] for parts in places}) == 1:
        common += 1
    wanted = [source.name or "/".join(parts[common:]) for source, parts in zip(sources, places, strict=True)]
    return [name if name not in wanted[:i] else f"{name} ({wanted[:i].count(name) + 1})" for i, name in enumerate(wanted)]


def shown(source: Source) -> str:
    """The place for messages."""
    return str(source.events.absolute()) if source.events is not None else place(source.url)[0]


def _parts(source: Source) -> list[str]:
    parts = [part for part in shown(source).split("?")[0].split("/") if part not in _GENERIC]
    return parts or [source.text]
