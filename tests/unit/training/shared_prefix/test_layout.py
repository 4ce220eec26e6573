"""Which tokens are packed, and what a packed token sees."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.training.shared_prefix.layout import find_runs, lay_out, shared_tokens

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6)


def tensors(rows):
    return [torch.tensor(row) for row in rows]


def padded(rows):
    width = max(map(len, rows))
    ids = torch.tensor([row + [9] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def fewest_tokens(rows):
    """By trying every way to cut the sorted rows into runs."""
    rows = sorted(rows)

    def cost(run):
        columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*run, strict=False))
        return sum(map(len, run)) - (len(run) - 1) * len(list(columns))

    ways = itertools.product([False, True], repeat=len(rows) - 1)
    cuts = [[0, *(i for i, cut in enumerate(way, 1) if cut), len(rows)] for way in ways]
    return min(sum(cost(rows[a:b]) for a, b in itertools.pairwise(way)) for way in cuts)


@given(ROWS)
def test_no_other_cut_of_the_sorted_rows_into_runs_has_fewer_tokens(rows):
    assert shared_tokens(tensors(rows)) == fewest_tokens(rows)


@given(ROWS)
def test_every_row_is_in_one_run_with_all_its_tokens(rows):
    runs = find_runs(tensors(rows))
    assert sorted(i for run in runs for i in run.rows) == list(range(len(rows)))
    for run in runs:
        assert [run.head + n for n in run.responses] == [len(rows[i]) for i in run.rows]


@given(ROWS)
def test_a_packed_token_sees_what_it_sees_in_its_own_row(rows):
    ids, mask = padded(rows)
    layout = lay_out(ids, mask)
    packed_ids = ids.flatten()[layout.source]
    for row, members in enumerate(rows):
        for t in range(len(members)):
            q = int(layout.packed[row, t])
            sees = [
                k for k in range(q + 1) if layout.segment[k] == layout.segment[q] or layout.segment[k] == layout.parent[q]
            ]
            assert packed_ids[sees].tolist() == members[: t + 1]
            assert layout.position[sees].tolist() == list(range(t + 1))


def test_the_example_of_the_module():
    ids, mask = padded([[1, 2, 3, 4, 5], [1, 2, 3, 6], [7, 8]])
    layout = lay_out(ids, mask)
    assert ids.flatten()[layout.source].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert layout.position.tolist() == [0, 1, 2, 3, 4, 3, 0, 1]
    assert layout.segment.tolist() == [0, 0, 0, 1, 1, 2, 3, 3]
    assert layout.parent.tolist() == [0, 0, 0, 0, 0, 0, 3, 3]


def test_a_template_that_all_prompts_start_with_does_not_break_up_groups():
    """Two groups of two share 3 tokens each; that all four share the first is no reason to share no more."""
    rows = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 5, 6, 7], [0, 5, 6, 8]]
    assert sorted(run.rows for run in find_runs(tensors(rows))) == [(0, 1), (2, 3)]


def test_different_cuts_within_a_group_share_the_shorter_prefix():
    rows = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 7]]
    assert shared_tokens(tensors(rows)) == min(4 + 1 + 1 + 3, 2 + 3 + 3 + 1)


def test_rows_padded_on_the_left_are_refused():
    with pytest.raises(ValueError, match="padded on the right only"):
        lay_out(torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 1], [1, 1]]))
