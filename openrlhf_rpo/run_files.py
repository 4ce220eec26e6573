"""Where a run keeps its path cache, and what the cache must belong to."""

import hashlib
import json
import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.cache.session import place
from openrlhf_rpo.checkpoints import CACHE_FILE
from openrlhf_rpo.types import Question


def cache_url(args: SimpleNamespace) -> str:
    """``--rpo.cache.url``, or an SQLite file below ``--ckpt.path``."""
    return args.rpo.cache.url or f"sqlite:///{os.path.abspath(os.path.join(args.ckpt.path, CACHE_FILE))}"


def cache_name(args: SimpleNamespace) -> str:
    """The cache as messages call it: a file, or a URL without its password."""
    return place(cache_url(args))[0]


def cache_copy_path(args: SimpleNamespace, tag: str) -> str:
    """The copy of the cache that belongs to checkpoint ``tag``; removed with it when checkpoints rotate."""
    return os.path.join(args.ckpt.path, "_actor", tag, CACHE_FILE)


def fingerprints(args: SimpleNamespace, questions: Iterable[Question], tokenizer: Any) -> dict[str, str]:
    """Short hashes of what a cached path depends on: another set of them is another run (spec section 7)."""
    template = [args.data.input_template, args.data.apply_chat_template and tokenizer.chat_template]
    return {
        "data": _hash(sorted(q.question_id for q in questions)),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "template": _hash(template),
        "base model": _hash(_model_files(args.actor.model_name_or_path)),
    }


def model_place(args: SimpleNamespace) -> str:
    """The base model's folder as an absolute path, or its hub name: where its tokenizer is found again."""
    name = args.actor.model_name_or_path
    return os.path.abspath(name) if os.path.isdir(name) else name


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A short hash of what ids mean under a tokenizer."""
    return _hash([sorted(tokenizer.get_vocab().items()), sorted(tokenizer.special_tokens_map.items())])


def _model_files(path: str) -> list[Any]:
    """Names and sizes of a local model's weights and its configuration; the bare name of a hub model."""
    if not os.path.isdir(path):
        return [path]
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    weights = sorted(n for n in os.listdir(path) if n.endswith((".safetensors", ".bin")))
    return [config, [(n, os.path.getsize(os.path.join(path, n))) for n in weights]]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
