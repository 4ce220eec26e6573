"""Laws of what a group starts from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.algo.methods import METHODS, RPO, Cut, Method, Stored
from openrlhf_rpo.algo.methods.prefixes import choose_paths, choose_prefixes
from openrlhf_rpo.types import OWN, Path, Prefix, Visit


def path(length=10, finish="stop", log_probs=True):
    probs = tuple(-i / 10 for i in range(length)) if log_probs else None
    return Path("q", tuple(range(100, 100 + length)), probs, finish, 1.0, 1.0, path_id=5)


def visit(start_bare=False, shortest=10):
    return Visit("q", 1, 0, 0, shortest, 4, 0, "reset", start_bare)


def by(*cuts, scores=False):
    """A method that cuts as it is told."""

    class Told(RPO):
        def cuts(self, cut):
            return cuts

    Told.scores = scores
    return Told()


def choose(stored, n=4, step=1, method=None, longest=10_000, log_probs=()):
    method = RPO() if method is None else method
    paths = choose_paths(method, Stored({OWN: stored}), n)
    return choose_prefixes(method, Cut(paths, keyed_generator(42, step, "q", "cut"), (), log_probs), longest)


def test_worked_example():
    cached = path(6)
    (prefix, _) = choose(cached, n=2, method=by(2, 2))
    assert prefix == Prefix((100, 101, 102, 103), (0.0, -0.1, -0.2, -0.3), 2, cached)


def test_without_a_path_the_group_starts_bare():
    assert choose_paths(RPO(), Stored(), 4) == ()


def test_after_a_reset_the_group_starts_bare_whatever_the_method_says():
    class Stubborn(RPO):
        def paths(self, stored, n_samples):
            return (stored.paths[OWN],) * n_samples

    for method in (RPO(), Stubborn()):
        assert choose_paths(method, Stored({OWN: path()}, (visit(start_bare=True),)), 4) == ()
        assert len(choose_paths(method, Stored({OWN: path()}, (visit(),)), 4)) == 4


def test_a_bare_start_has_no_path_and_no_cut():
    assert (Prefix().path, Prefix().cut, len(Prefix())) == (None, 0, 0)


def test_a_cut_of_nothing_keeps_the_whole_path():
    cached = path(6, finish="length")
    (prefix,) = choose(cached, n=1, method=by(0))
    assert (prefix.token_ids, prefix.log_probs, prefix.cut) == (cached.token_ids, cached.log_probs, 0)


def test_an_end_token_goes_whatever_the_method_says_unless_it_is_verified():
    ended, cut_off = path(6), path(4, finish="length")
    assert [prefix.cut for prefix in choose_prefixes(by(0, 0), Cut((cut_off, ended), None, ()), 99)] == [0, 1]
    logs = (ended.log_probs,)
    (prefix,) = choose(ended, n=1, method=by(0, scores=True), log_probs=logs)
    assert prefix.cut == 0


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind().paths(Stored({OWN: path()}), 4)])
@pytest.mark.parametrize("length", [1, 2, 10, 100])
def test_the_prefixes_of_every_method_leave_something_to_generate(name, length):
    cached = path(length)
    prefixes = choose(cached, n=4, method=METHODS[name](), log_probs=(cached.log_probs,) * 4)
    least = 0 if METHODS[name].scores else 1
    assert len(prefixes) == 4 and all(least <= prefix.cut <= length for prefix in prefixes)


def test_a_cut_is_an_integer_of_any_kind_and_kept_as_pythons():
    """SQLite would store NumPy's as bytes, which nobody reads again."""
    (prefix,) = choose(path(6), n=1, method=by(np.int64(2)))
    assert (prefix.cut, type(prefix.cut)) == (2, int)
    with pytest.raises(ValueError, match=r"a cut of 2\.5 tokens does not fit a path of 6"):
        choose(path(6), n=1, method=by(2.5))


@pytest.mark.parametrize("log_probs", [True, False])
def test_a_cut_of_everything_is_empty_but_remembers_its_path(log_probs):
    cached = path(6, log_probs=log_probs)
    assert choose(cached, n=1, method=by(6)) == (Prefix((), (), 6, cached),)


def test_a_path_without_log_probs_gives_a_prefix_without():
    assert choose(path(6, log_probs=False), n=1, method=by(2))[0].log_probs is None


@given(st.integers(1, 40), st.sampled_from(["group", "sample"]), st.integers(0, 50), st.booleans())
def test_prefix_and_cut_make_up_the_path(length, scope, step, log_probs):
    cached = path(length, log_probs=log_probs)
    prefixes = choose(cached, n=6, step=step, method=RPO(cut_scope=scope))
    assert len(prefixes) == 6
    for prefix in prefixes:
        assert len(prefix) + prefix.cut == length
        assert prefix.token_ids == cached.token_ids[: len(prefix)]
        assert prefix.log_probs is None or len(prefix.log_probs) == len(prefix)
        assert prefix.cut >= 1  # it ends in an end token


def test_a_resumed_run_draws_the_same_prefixes():
    scoped = RPO(cut_scope="sample")
    assert choose(path(), step=7, method=scoped) == choose(path(), step=7, method=scoped)


def test_steps_draw_different_cuts():
    assert len({choose(path(40), step=step)[0].cut for step in range(20)}) > 1


@pytest.mark.parametrize("cuts", [(1,), (11, 11), (-1, -1)])
def test_a_method_that_breaks_its_contract_is_refused(cuts):
    with pytest.raises(ValueError, match="cut"):
        choose(path(10), n=2, method=by(*cuts))


def test_a_method_that_names_another_number_of_paths_is_refused():
    class Odd(RPO):
        def paths(self, stored, n_samples):
            return (path(),)

    with pytest.raises(ValueError, match="method odd: 1 paths for 2 samples"):
        choose_paths(Odd(), Stored({OWN: path()}), 2)


def test_a_method_that_continues_paths_must_say_where():
    class Lost(Method):
        pass

    with pytest.raises(NotImplementedError, match="method lost continues stored paths, so it needs cuts"):
        Lost().cuts(Cut((path(),), keyed_generator(0, 0, "q", "cut")))


def test_no_prefix_is_longer_than_asked_so_that_a_full_path_leaves_room():
    (prefix, _) = choose(path(100, finish="length"), n=2, method=by(0, 0), longest=99)
    assert (len(prefix), prefix.cut) == (99, 1)
    (shorter, _) = choose(path(10), n=2, method=by(1, 1), longest=99)
    assert len(shorter) == 9


def test_a_path_that_was_scored_keeps_the_new_log_probs():
    now = tuple(-float(i) for i in range(10))
    prefixes = choose(path(), method=by(*(7,) * 4, scores=True), log_probs=(now,) * 4)
    assert tuple(prefixes[0].log_probs) == now[:3]
