"""Resolving command arguments: the cache, the step, the question, the tokenizer."""

import os
from typing import Any

from tqdm import tqdm

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import ExchangeError, UsageError
from openrlhf_rpo.exchange.sources import database_url
from openrlhf_rpo.exchange.text import own_tokenizer

_SHOWN = 5


def cache_place(text: str) -> str:
    """The URL of an existing cache, from a URL, file or folder such as a run's --ckpt.path. Raises UsageError."""
    url = database_url(text)
    file = url.removeprefix("sqlite:///")
    if url.startswith("sqlite:///") and not (os.path.isfile(file) and os.path.getsize(file)):
        raise UsageError(f"there is no path cache at {file}: give its file, its URL, or a run's --ckpt.path")
    return url


def open_to_read(text: str) -> PathCache:
    """The cache that ``text`` names, which a run may be writing."""
    return PathCache.open_to_read(cache_place(text))


def open_to_write(text: str) -> PathCache:
    """The same, checked whole, with the writer's lock, which a run holds until it ends. Raises CacheError."""
    cache = PathCache.open(cache_place(text))
    try:
        check_rows(cache)
    except BaseException:
        cache.close()
        raise
    return cache


def check_rows(cache: PathCache) -> None:
    """Wait until every byte has been read since opening, with a progress bar. Raises CacheCorrupt."""
    with tqdm(desc="Checking the cache", unit="row", delay=3) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        cache.wait_until_inspected(progress)


def at_step(cache: PathCache, step: int | None) -> int:
    """``step`` (default: the newest). Raises UsageError unless the cache can be read at that step."""
    latest = max(cache.latest_step, 0)
    if step is None:
        return latest
    if not cache.kept_from <= step <= latest and step not in cache.kept_steps:
        others = "".join(f", and at step {kept}" for kept in cache.kept_steps)
        raise UsageError(f"step {step}: this cache can be read from step {cache.kept_from} to step {latest}{others}")
    return step


def find_tokenizer(cache: PathCache, model: str | None) -> tuple[Any, str]:
    """(the cache's tokenizer, "") or (None, the reason why there is none).

    Raises ExchangeError if ``model`` (--tokenizer) has another tokenizer. Without ``model``, the tokenizer is loaded
    from the run's model, on this machine only.
    """
    fingerprint = cache.fingerprints.get("tokenizer")
    if model is not None:
        return own_tokenizer(model, fingerprint, offline=False), ""
    hint = "Token ids are shown instead of text: name the model with --tokenizer MODEL"
    if cache.model is None:
        return None, f"This cache does not say whose tokenizer it uses. {hint}"
    try:
        return own_tokenizer(cache.model, fingerprint, offline=True), ""
    except ExchangeError as error:
        return None, f"{error}. {hint}"


def find_question(cache: PathCache, text: str) -> str:
    """The id of the one question with this id, prefix of an id, or part of its text. Raises UsageError."""
    questions = cache.questions()
    ids = questions.keys() | set(cache.question_ids())
    if text in ids:
        return text
    found = sorted(i for i in ids if i.startswith(text))
    if not found:
        wanted = text.casefold()
        exact = [i for i, q in questions.items() if text in (q.text, q.prompt)]
        found = exact or [i for i, q in questions.items() if wanted in q.text.casefold() or wanted in q.prompt.casefold()]
    if len(found) == 1:
        return found[0]
    if not found:
        known = "" if questions else ", and it holds no texts to search"
        raise UsageError(f"no question of this cache has the id or text {text!r}{known}")
    shown = "".join(f"\n  {i}  {questions[i].text[:60]!r}" if i in questions else f"\n  {i}" for i in found[:_SHOWN])
    more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise UsageError(f"{text!r} fits {len(found)} questions:{shown}{more}")
