"""The location of a run's path cache and of its folders, and fingerprints of what the cache depends on."""

import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.cache.session import place
from openrlhf_rpo.run.checkpoints import CACHE_FILE
from openrlhf_rpo.types import Question

MIB = 2**20
BLOCKS = 256


def cache_url(args: SimpleNamespace) -> str:
    """``--rpo.cache.url``, or an SQLite file in ``--ckpt.path``."""
    return args.rpo.cache.url or f"sqlite:///{os.path.abspath(os.path.join(args.ckpt.path, CACHE_FILE))}"


def cache_name(args: SimpleNamespace) -> str:
    """The cache's name in messages: a file, or a URL."""
    return place(cache_url(args))[0]


def cache_copy_path(args: SimpleNamespace, tag: str) -> str:
    """The copy of the cache in checkpoint ``tag``."""
    return os.path.join(args.ckpt.path, "_actor", tag, CACHE_FILE)


def fingerprints(args: SimpleNamespace, questions: Iterable[Question], tokenizer: Any) -> dict[str, str]:
    """Short hashes of what cached paths depend on; a run with others needs another cache (docs/cache.md, Limits)."""
    template = [args.data.input_template, args.data.apply_chat_template and tokenizer.chat_template]
    return {
        "data": _hash(sorted(q.question_id for q in questions)),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "template": _hash(template),
        "base model": _hash(_model_files(args.actor.model_name_or_path)),
        "weights": weights_fingerprint(args.actor.model_name_or_path),
    }


def model_place(args: SimpleNamespace) -> str:
    """The base model's folder as an absolute path, or its hub name."""
    name = args.actor.model_name_or_path
    return os.path.abspath(name) if os.path.isdir(name) else name


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A short hash of a tokenizer's vocabulary and special tokens."""
    return _hash([sorted(tokenizer.get_vocab().items()), sorted(tokenizer.special_tokens_map.items())])


def weights_fingerprint(model: str) -> str:
    """A short hash of a folder's weights, at most 256 MiB of each file, evenly spread; of a hub model's commit.

    The commit is the one that would be loaded now. Of a model that is neither cached nor within reach the name is hashed.
    """
    if not os.path.isdir(model):
        return _hash(_commit(model) or model)
    total = hashlib.sha256()
    for file in (Path(model, name) for name in weight_files(model)):
        every = math.ceil(file.stat().st_size / MIB / BLOCKS) * MIB
        with file.open("rb") as f:
            for at in range(0, file.stat().st_size, every or MIB):
                f.seek(at)
                total.update(f.read(MIB))
    return total.hexdigest()[:16]


def _commit(model: str) -> str | None:
    """The commit of a hub model, fetching its configuration if need be; None if the hub does not give it."""
    from transformers.utils import cached_file

    try:
        config = cached_file(model, "config.json")  # in a folder with the commit's name
    except OSError:
        return None
    return None if config is None else Path(config).parent.name


def existing(folder: str) -> Path:
    """The absolute path of ``folder``, or the nearest one above it that exists."""
    place = os.path.abspath(folder)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return Path(place)


def weight_files(folder: str) -> list[str]:
    """The names of the files with weights in a model's folder."""
    return sorted(name for name in os.listdir(folder) if name.endswith((".safetensors", ".bin")))


def _model_files(path: str) -> list[Any]:
    """A local model's configuration and the names and sizes of its weights; only the name of a hub model."""
    if not os.path.isdir(path):
        return [path]
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    return [config, [(n, os.path.getsize(os.path.join(path, n))) for n in weight_files(path)]]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def contents_of(*sources: str | None) -> dict[str, str]:
    """name -> short content hash, for each name in comma separated ``sources``; a hub data set's hash is its name."""
    names = [name for source in sources if source for name in source.split(",")]
    return {name: content_of(Path(name)) for name in names}


def content_of(path: Path) -> str:
    """A short hash of a file or of the files in a folder; the path itself if it does not exist."""
    if not path.exists():
        return str(path)
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as f:
            total.update(hashlib.file_digest(f, "sha256").digest())
    return total.hexdigest()[:16]
