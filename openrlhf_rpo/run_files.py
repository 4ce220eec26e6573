"""Where a run keeps its path cache, and what the cache must belong to."""

import hashlib
import json
import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.types import Question

CACHE_FILE = "rpo_cache.db"


def cache_url(args: SimpleNamespace) -> str:
    """``--rpo.cache.url``, or SQLite below ``--ckpt.path``."""
    return args.rpo.cache.url or f"sqlite:///{os.path.abspath(os.path.join(args.ckpt.path, CACHE_FILE))}"


def cache_copy_path(args: SimpleNamespace, tag: str) -> str:
    """The copy of the cache that belongs to checkpoint ``tag``; removed with it when checkpoints rotate."""
    return os.path.join(args.ckpt.path, "_actor", tag, CACHE_FILE)


def latest_cache_copy(args: SimpleNamespace) -> str | None:
    """The copy beside the checkpoint that a resumed run will load, if there is one."""
    latest = os.path.join(args.ckpt.path, "_actor", "latest")
    if not os.path.exists(latest):
        return None
    with open(latest) as f:
        path = cache_copy_path(args, f.read().strip())
    return path if os.path.exists(path) else None


def fingerprints(args: SimpleNamespace, questions: Iterable[Question], tokenizer: Any) -> dict[str, str]:
    """Short hashes of what a cached path depends on: another set of them is another run (spec section 7)."""
    template = [args.data.input_template, args.data.apply_chat_template and tokenizer.chat_template]
    return {
        "data": _hash(sorted(q.question_id for q in questions)),
        "tokenizer": _hash([sorted(tokenizer.get_vocab().items()), sorted(tokenizer.special_tokens_map.items())]),
        "template": _hash(template),
        "base model": _hash(_model_files(args.actor.model_name_or_path)),
    }


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
