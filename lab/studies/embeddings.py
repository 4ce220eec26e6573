"""Texts as vectors: the mean over tokens of a model's last hidden states, normalized to length 1.

By default the model under study embeds its own text, which needs no download; any transformers encoder (BERT, as in the
paper, or a sentence-transformers model with mean pooling) can be used instead. Mean-pooled states of a language model all
point in similar directions, so compare their cosines with those of unrelated texts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from openrlhf_rpo.errors import UsageError, reason_of
from openrlhf_rpo.launch.model_code import file_with_code

_BATCH = 64


class Embedder:
    """Loads ``model`` (a folder or a hub name) on the CPU, or on this host's first GPU. Raises UsageError."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        try:
            if file := file_with_code(model):
                raise UsageError(f"--embedder {model}: the model brings Python code of its own (auto_map in its {file})")
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
            self._device = "cuda" if torch.cuda.is_available() else "cpu"  # the cluster's GPUs may be on other hosts
            self._model = AutoModel.from_pretrained(model).to(self._device).float().eval()
        except (OSError, ValueError) as error:
            raise UsageError(f"--embedder {model}: cannot be loaded: {reason_of(error)}") from error
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._longest = self._model.config.to_dict().get("max_position_embeddings") or 512

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, hidden], each row of length 1. Texts are truncated to the model's context."""
        import torch

        rows = []
        with torch.inference_mode():
            for start in range(0, len(texts), _BATCH):
                batch = self._tokenizer(
                    list(texts[start : start + _BATCH]),
                    padding=True,
                    truncation=True,
                    max_length=self._longest,
                    return_tensors="pt",
                ).to(self._device)
                states = self._model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
                weights = batch["attention_mask"].unsqueeze(-1)
                mean = (states * weights).sum(1) / weights.sum(1)
                rows.append(torch.nn.functional.normalize(mean, dim=-1).cpu().numpy())
        return np.concatenate(rows)


def mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine over all pairs of normalized rows, the paper's sim. Raises ValueError for fewer than two rows.

    sim = 2 / (n (n - 1)) * sum over i < j of s_i . s_j = (|sum of s_i|^2 - n) / (n (n - 1))
    """
    n = len(vectors)
    if n < 2:
        raise ValueError("one vector has no pair")
    total = vectors.sum(0)
    return float((total @ total - n) / (n * (n - 1)))


def mean_cosine_between(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The mean cosine over every pair of a normalized row of ``ours`` and one of ``theirs``."""
    return float(ours.mean(0) @ theirs.mean(0))
