"""Converting between token ids and text."""

from collections.abc import Sequence
from typing import Any

from openrlhf_rpo.errors import ExchangeError, reason_of
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.types import FinishReason, TokenIds, as_ids


def load_tokenizer(model: str, *, offline: bool) -> Any:
    """The tokenizer of a model folder or hub name, with a padding token as in upstream's ``get_tokenizer``.

    ``offline`` uses only files on this machine. The model's code is never run, because a cache may come from anyone.
    Raises ExchangeError.
    """
    from transformers import AutoTokenizer  # takes seconds to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=offline, trust_remote_code=False)
    except Exception as error:  # the libraries raise plain Exceptions for files they do not understand
        raise ExchangeError(f"the tokenizer of {model} cannot be loaded: {reason_of(error)}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def own_tokenizer(model: str, fingerprint: str | None, *, offline: bool) -> Any:
    """``load_tokenizer``; raises ExchangeError unless the tokenizer has this fingerprint."""
    tokenizer = load_tokenizer(model, offline=offline)
    loaded = tokenizer_fingerprint(tokenizer)
    if fingerprint is not None and loaded != fingerprint:
        raise ExchangeError(
            f"{model} has another tokenizer than the cached paths: its fingerprint is {loaded}, theirs {fingerprint}"
        )
    return tokenizer


def vocabulary(tokenizer: Any) -> int:
    """How many token ids the model of a loaded tokenizer samples from: often more than the tokenizer has, because its
    embedding is padded. The model's code is never run."""
    from transformers import PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(tokenizer.name_or_path)
    return max(len(tokenizer), (config.get("text_config") or config).get("vocab_size") or 0)


def path_text(token_ids: Sequence[int], tokenizer: Any) -> str:
    """A path as text, without special tokens such as its end token."""
    return tokenizer.decode(list(token_ids), skip_special_tokens=True)


def path_ids(text: str, finish_reason: FinishReason, tokenizer: Any) -> TokenIds:
    """Inverse of ``path_text``, with any tokenizer; a path that stopped by itself gets an end token.

    Raises ExchangeError when the tokenizer has none.
    """
    ids = as_ids(tokenizer(text, add_special_tokens=False)["input_ids"])
    if finish_reason == "length":
        return ids
    if tokenizer.eos_token_id is None:
        raise ExchangeError("the model's tokenizer has no end token (eos_token), which an imported text needs")
    end = as_ids([tokenizer.eos_token_id])
    return ids if ids[-1:] == end else ids + end  # its text may have one


def pieces(token_ids: Sequence[int], ends: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of token_ids[0:ends[0]], token_ids[ends[0]:ends[1]], ..., with special tokens.

    Each is decoded from the start, so that a character split over several tokens appears whole, in the later piece.
    """
    found, done = [], ""
    for end in ends:
        text = tokenizer.decode(list(token_ids[:end]), skip_special_tokens=False)
        whole = text if end == ends[-1] else text.rstrip("\ufffd")
        found.append(whole[len(done) :])
        done = whole
    return found
