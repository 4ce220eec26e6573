"""Pack rows into one row that holds each common head once.

Example, two rows with the head ``a b c`` and a third that shares nothing::

    rows        a b c d e      a b c x      u v
    packed      a b c | d e | x || u v
    position    0 1 2   3 4   3    0 1          restarts after the head for each response
    segment     0 0 0   1 1   2    3 3
    parent      0 0 0   0 0   0    3 3

A token attends to its own segment up to itself and to its parent, the segment of the shared head: exactly what it sees in
its own row. Common heads are found from the ids alone, so different cuts within a group, empty prefixes (the prompt is still
shared) and micro-batches of several groups need no special cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Run:
    """Rows packed together: their indices, the length of their common head, and the length of each row's rest.

    Lengths are in tokens. A row that is all head has a response of 0 tokens.
    """

    rows: tuple[int, ...]
    head: int
    responses: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.head + sum(self.responses)


@dataclass(frozen=True)
class Layout:
    """N packed tokens of B rows of T tokens.

    ``source`` (N,): index of each token in the flattened rows; ``position`` (N,): its position in its own row;
    ``segment`` and ``parent`` (N,): see the module; ``packed`` (B, T): index of a row's token among the N, -1 for padding.
    """

    runs: tuple[Run, ...]
    source: torch.Tensor
    position: torch.Tensor
    segment: torch.Tensor
    parent: torch.Tensor
    packed: torch.Tensor

    @property
    def tokens(self) -> int:
        return len(self.source)

    @cached_property
    def kernel_inputs(self) -> dict[str, object]:
        """A cache for what an attention kernel derives from the layout, shared by all layers."""
        return {}


def find_runs(rows: Sequence[torch.Tensor]) -> tuple[Run, ...]:
    """Divide the rows (non-empty 1-D tensors of ids) into the runs with the fewest tokens in total.

    Rows with a common head are neighbours in sorted order, and the head of a run is the shortest head of its neighbouring
    pairs. So a best division of the first j rows extends a best division of the first i < j rows.
    """
    order = sorted(range(len(rows)), key=lambda i: _sortable(rows[i]))
    alike = [_common_head(rows[a], rows[b]) for a, b in zip(order, order[1:], strict=False)]
    lengths = [len(rows[i]) for i in order]
    best: list[tuple[int, int]] = [(0, 0)]  # tokens of the first j rows, and where their last run starts
    heads: dict[tuple[int, int], int] = {}
    for j in range(1, len(order) + 1):
        head, total, choices = lengths[j - 1], 0, []
        for i in range(j - 1, -1, -1):  # the last run is order[i:j]
            head = min(head, alike[i]) if i < j - 1 else head
            if head == 0 and i < j - 1:
                break
            total += lengths[i]
            heads[i, j] = head
            choices.append((best[i][0] + total - (j - i - 1) * head, i))
        best.append(min(choices))
    runs: list[Run] = []
    end = len(order)
    while end:
        start = best[end][1]
        head, members = heads[start, end], order[start:end]
        runs.append(Run(tuple(members), head, tuple(len(rows[i]) - head for i in members)))
        end = start
    return tuple(reversed(runs))


def _sortable(row: torch.Tensor) -> bytes:
    """Ids as bytes that sort as the ids do."""
    return row.numpy().astype(">i8").tobytes()


def _common_head(a: torch.Tensor, b: torch.Tensor) -> int:
    n = min(len(a), len(b))
    differ = (a[:n] != b[:n]).nonzero()
    return int(differ[0]) if len(differ) else n


def shared_tokens(rows: Sequence[torch.Tensor]) -> int:
    """Tokens that a forward pass over these rows runs if shared heads run once."""
    return sum(run.tokens for run in find_runs(rows))


def lay_out(sequences: torch.Tensor, attention_mask: torch.Tensor, share: bool = True) -> Layout:
    """Pack right-padded rows, (B, T) ids and (B, T) mask; ``share`` false packs whole rows.

    Raises ValueError for rows that are empty or padded on the left.
    """
    ids, mask = sequences.cpu(), attention_mask.bool().cpu()
    lengths = mask.sum(-1)
    width = sequences.shape[1]
    if not torch.equal(mask, torch.arange(width) < lengths[:, None]) or not lengths.all():
        raise ValueError("shared prefixes need rows that are padded on the right only and hold a token")
    rows = [row[:n] for row, n in zip(ids, lengths.tolist(), strict=True)]
    runs = find_runs(rows) if share else tuple(Run((i,), len(row), (0,)) for i, row in enumerate(rows))

    packed = torch.full(ids.shape, -1)
    sources, segments, parents = [], [], []
    start = segment = 0

    def put(row: int, begin: int, length: int, parent: int) -> None:
        nonlocal start, segment
        sources.append(torch.arange(row * width + begin, row * width + begin + length))
        segments.append(torch.full((length,), segment))
        parents.append(torch.full((length,), parent))
        packed[row, begin : begin + length] = torch.arange(start, start + length)
        start, segment = start + length, segment + 1

    for run in runs:
        head = segment
        put(run.rows[0], 0, run.head, head)
        for row, length in zip(run.rows, run.responses, strict=True):
            packed[row, : run.head] = packed[run.rows[0], : run.head]
            if length:
                put(row, run.head, length, head)
    source = torch.cat(sources)
    device = sequences.device
    return Layout(
        runs,
        source.to(device),
        (source % width).to(device),
        torch.cat(segments).to(device),
        torch.cat(parents).to(device),
        packed.to(device),
    )
