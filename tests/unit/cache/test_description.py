"""What a cache says about its run: questions, model, and outlines of its paths."""

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.types import Question

QUESTIONS = [Question("q", "<user>1+1?", "2", "sums", "1+1?"), Question("r", "<user>2+2?", "4", "sums", "2+2?")]


def test_a_cache_knows_its_questions_and_its_model(cache, reopen) -> None:
    assert cache.questions() == {} and cache.model is None
    cache.describe(QUESTIONS, "/models/a")
    cache.close()
    with reopen() as again:
        assert again.questions() == {q.question_id: q for q in QUESTIONS}
        assert again.model == "/models/a"


def test_questions_of_another_run_take_the_place_of_those_before(cache) -> None:
    cache.describe(QUESTIONS, "a")
    cache.describe(QUESTIONS[1:], "b")
    assert list(cache.questions()) == ["r"] and cache.model == "b"


def test_text_that_no_database_takes_is_mended(cache) -> None:
    cache.describe([Question("q", "a\0b", "\ud800", text="\0")], "m")
    assert cache.questions()["q"].prompt == "a\ufffdb"
    assert cache.questions()["q"].label == "?"


def test_outlines_are_every_stored_path_by_step(cache, commit) -> None:
    commit(cache, 1, {"r": (4, 5, 6)})
    commit(cache, 2, {"q": None})
    assert [(o.question_id, o.step, o.length, o.score, o.reward) for o in cache.outlines()] == [
        ("q", 0, 3, 1.0, 0.75),
        ("r", 0, 2, 1.0, 0.75),
        ("r", 1, 3, 1.0, 0.75),
    ]


def test_a_reader_sees_outlines_beside_the_writer(cache, url, commit) -> None:
    with PathCache.open_to_read(url) as reader:
        commit(cache, 1, {"r": (4, 5, 6)})
        assert len(list(reader.outlines())) == 3
