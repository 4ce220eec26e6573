"""Lineages as the page stores them: put together again they are the texts, and kept heads are not repeated."""

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.reports.page import packed, safe_json
from openrlhf_rpo.reports.questions import choose, details, events, names
from openrlhf_rpo.types import Path, Question


def decode(lists):
    """Ids are UTF-8 bytes, so that a cut can go through a character."""
    return [bytes(ids).decode("utf-8", "replace") for ids in lists]


def build(question, step, text, kept=0, parent=None, number=None):
    return Path(question, tuple(text.encode()), None, "stop", 1.0, 0.5, kept, step, number, parent)


def put_together(paths):
    """What the page does, in UTF-16."""
    wholes = []
    for path in paths:
        head = b"" if path["parent"] < 0 else wholes[path["parent"]][: 2 * path["shared"]]
        wholes.append(head + path["text"].encode("utf-16-le"))
    return [whole.decode("utf-16-le") for whole in wholes]


def test_a_path_holds_what_it_does_not_share_with_its_parent():
    stored = [build("q", 0, "abcdef", number=1), build("q", 3, "abcxyz", 3, 1, 2), build("q", 5, "abcx!", 4, 2, 3)]
    [found] = details({"q": stored}, {"q": Question("q", "<u>?", "2", text="?")}, {}, decode)
    assert [(p["parent"], p["shared"], p["kept"], p["text"]) for p in found["paths"]] == [
        (-1, 0, 0, "abcdef"),
        (0, 3, 3, "xyz"),
        (1, 4, 4, "!"),
    ]
    assert put_together(found["paths"]) == ["abcdef", "abcxyz", "abcx!"]
    assert found["question"] == {"text": "?", "prompt": "<u>?"}


def test_a_character_that_the_cut_went_through_is_new():
    """The clock is 4 bytes and 2 UTF-16 units; the prefix has 2 of its bytes."""
    stored = [build("q", 0, "a\U0001f552b", number=1), build("q", 1, "a\U0001f552c", 3, 1, 2)]
    [found] = details({"q": stored}, {}, {}, decode)
    assert (found["paths"][1]["kept"], found["paths"][1]["text"]) == (1, "\U0001f552c")
    stored[1] = build("q", 1, "a\U0001f552c", 5, 1, 2)
    [found] = details({"q": stored}, {}, {}, decode)
    assert (found["paths"][1]["kept"], found["paths"][1]["text"]) == (3, "c")
    assert put_together(found["paths"])[1] == "a\U0001f552c"


def test_a_head_whose_path_is_not_here_is_stored_whole():
    """Pruning leaves the path without a parent; one whose parent is kept in another slot names it."""
    for parent, elsewhere in ((None, False), (77, True)):
        [found] = details({"q": [build("q", 4, "abcd", 2, parent, 3)]}, {}, {}, decode)
        [path] = found["paths"]
        assert (path["parent"], path["kept"], path["text"], path["elsewhere"]) == (-1, 2, "abcd", elsewhere)
    [found] = details({"q": [build("q", 0, "abcd", number=1), build("q", 1, "abc", 2, 1, 2)]}, {}, {}, decode)
    assert not any(path["elsewhere"] for path in found["paths"])


@given(st.lists(st.tuples(st.text(max_size=8), st.integers(0, 40)), min_size=1, max_size=6))
def test_every_lineage_comes_out_as_it_was(generations):
    stored, before = [], b""
    for step, (text, kept) in enumerate(generations):
        kept = min(kept, len(before)) if step else 0
        ids = before[:kept] + text.encode("utf-8", "replace")
        stored.append(Path("q", tuple(ids), None, "stop", 1.0, 1.0, kept, step, step + 1, step or None))
        before = ids
    [found] = details({"q": stored}, {}, {}, decode)
    assert put_together(found["paths"]) == decode([path.token_ids.tolist() for path in stored])


def test_the_index_has_every_event_of_later_steps(run_folder):
    with PathCache.open_to_read(f"sqlite:///{run_folder}/rpo_cache.db") as cache:
        ids, total = choose(cache, cache.questions(), None)
        everything, later = events(cache, ids, -1, 4), events(cache, ids, 2, 3)
        known = names(cache.questions(), ids)
    assert (ids, total, known["labels"]) == (["q0", "q1", "q2"], 3, ["0", "1", "2"])
    assert everything["paths"]["step"] == [0, 0, 1, 2, 3, 4] and everything["visits"]["q"] == [0, 1] * 4
    assert (later["paths"]["step"], later["visits"]["step"]) == ([3], [3, 3])


def test_beyond_a_limit_the_questions_that_were_visited_last_are_taken(run_folder):
    with PathCache.open_to_read(f"sqlite:///{run_folder}/rpo_cache.db") as cache:
        assert choose(cache, cache.questions(), 2) == (["q0", "q1"], 3)


def test_questions_are_chosen_without_reading_a_question_again_or_a_visit(run_folder, monkeypatch):
    with PathCache.open_to_read(f"sqlite:///{run_folder}/rpo_cache.db") as cache:
        monkeypatch.setattr(CacheHistory, "questions", None)
        monkeypatch.setattr(CacheHistory, "visits_after", None)
        assert choose(cache, ["q2"], 2) == (["q0", "q1"], 3)
        assert cache.last_visits() == {"q0": 4, "q1": 4}


def test_no_markup_gets_through():
    assert "<" not in safe_json({"a": "</script><!--"}) and "<" not in packed("</script>")
