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

_BATCH = 64  # texts, and windows in one pass


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
        if not self._tokenizer.is_fast:
            raise UsageError(f"--embedder {model}: it has no fast tokenizer, which splits long texts into windows")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        positions = self._model.config.to_dict().get("max_position_embeddings") or 512
        self._longest = min(positions, self._tokenizer.model_max_length)  # 10^30 if the tokenizer names none

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, hidden], each row of length 1.

        A text beyond the model's context is read in consecutive windows of it; its mean is over the tokens of all windows.
        """
        import torch

        rows = []
        with torch.inference_mode():
            for start in range(0, len(texts), _BATCH):
                batch = self._tokenizer(
                    list(texts[start : start + _BATCH]),
                    padding=True,
                    truncation=True,
                    max_length=self._longest,
                    return_overflowing_tokens=True,
                    return_tensors="pt",
                ).to(self._device)
                text_of, mask = batch["overflow_to_sample_mapping"], batch["attention_mask"]  # a row per window
                sums = torch.cat(list(map(self._sums, batch["input_ids"].split(_BATCH), mask.split(_BATCH))))
                counts = mask.sum(1, keepdim=True)
                n = int(text_of[-1]) + 1
                total = sums.new_zeros(n, sums.shape[1]).index_add_(0, text_of, sums)
                mean = total / counts.new_zeros(n, 1).index_add_(0, text_of, counts)
                rows.append(torch.nn.functional.normalize(mean, dim=-1).cpu().numpy())
        return np.concatenate(rows)

    def _sums(self, ids: Any, mask: Any) -> Any:
        """[windows, hidden]: the sum of each window's states. ``ids``, ``mask``: [windows, tokens]."""
        return (self._model(input_ids=ids, attention_mask=mask).last_hidden_state * mask.unsqueeze(-1)).sum(1)


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
