"""Between token ids and text: a cache's own tokenizer, a path's text, and its ids under another tokenizer."""

from collections.abc import Sequence
from typing import Any

from openrlhf_rpo.exchange.errors import ExchangeError
from openrlhf_rpo.run_files import tokenizer_fingerprint
from openrlhf_rpo.types import FinishReason


def load_tokenizer(model: str, *, offline: bool) -> Any:
    """The tokenizer of a model folder or hub name, with a padding token as upstream's ``get_tokenizer`` gives it.

    ``offline`` takes it from this machine only. No code of the model runs: a cache may come from anybody. Raises
    ExchangeError.
    """
    from transformers import AutoTokenizer  # seconds, which most sub-commands need not spend

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=offline, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ExchangeError(f"the tokenizer of {model} cannot be loaded: {reason}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def own_tokenizer(model: str, fingerprint: str | None, *, offline: bool) -> Any:
    """``load_tokenizer``, refused with ExchangeError unless it is the one with this fingerprint."""
    tokenizer = load_tokenizer(model, offline=offline)
    loaded = tokenizer_fingerprint(tokenizer)
    if fingerprint is not None and loaded != fingerprint:
        raise ExchangeError(
            f"{model} has another tokenizer than the cached paths: its fingerprint is {loaded}, theirs {fingerprint}"
        )
    return tokenizer


def path_text(token_ids: Sequence[int], tokenizer: Any) -> str:
    """A path as text without special tokens, so without its end token, too."""
    return tokenizer.decode(list(token_ids), skip_special_tokens=True)


def path_ids(text: str, finish_reason: FinishReason, tokenizer: Any) -> tuple[int, ...]:
    """Inverse of ``path_text`` under any tokenizer: a path that stopped by itself ends in the end token.

    Raises ExchangeError when the tokenizer has none.
    """
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if finish_reason == "length":
        return ids
    if tokenizer.eos_token_id is None:
        raise ExchangeError("the model's tokenizer names no end token (eos_token), and an imported text must end in one")
    return (*ids, tokenizer.eos_token_id)


def pieces(token_ids: Sequence[int], ends: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of token_ids[0:ends[0]], token_ids[ends[0]:ends[1]], ..., special tokens shown.

    Decoded from the start each time, so that a character of several tokens stands whole in the later piece.
    """
    found, done = [], ""
    for end in ends:
        text = tokenizer.decode(list(token_ids[:end]), skip_special_tokens=False)
        whole = text if end == ends[-1] else text.rstrip("\ufffd")
        found.append(whole[len(done) :])
        done = whole
    return found
