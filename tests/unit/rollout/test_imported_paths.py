"""An imported initial cache: what enters, as which ids, with which score, and what is said about the rest."""

import json
import re
import shutil
from pathlib import Path as File

import pytest

from lab.testbed import model_dir
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.sources import check_source, import_source
from openrlhf_rpo.exchange.text import load_tokenizer, path_text
from openrlhf_rpo.launch import options
from openrlhf_rpo.rollout.generation import Generator
from openrlhf_rpo.rollout.imported_paths import import_paths
from openrlhf_rpo.rollout.initial_cache import fill_initial_cache
from openrlhf_rpo.rollout.reward_call import RewardResult
from openrlhf_rpo.rollout.rollout import Rollout
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.types import Path, Question

EXPERT = File(__file__).parents[3] / "examples" / "methods" / "expert.py"
QUESTIONS = [Question(f"id{i}", f"ask {i}+{i}?", str(2 * i), text=f"{i}+{i}?", prompt_ids=(5,) * 8) for i in range(4)]


class Rewards:
    """1 where the label is in the box."""

    failures = 0

    def __init__(self):
        self.seen: list[str] = []

    def score(self, requests):
        self.seen += [r.question_id for r in requests]
        right = [float(f"{{{r.label}}}" in r.response) for r in requests]
        return [RewardResult(reward=r / 2, score=r) for r in right]


class Run:
    """What a run has before its engines start."""

    def __init__(self, folder: File, source: str, model: File, scorer: Rewards | None, **changes: object) -> None:
        words = {
            "actor.model_name_or_path": model,
            "data.prompt_dataset": "d.jsonl",
            "data.input_key": "question",
            "data.label_key": "answer",
            "data.max_len": 40,
            "rpo.reward.functions": "math",
            "rollout.batch_size": 1,
            "rollout.n_samples_per_prompt": 4,
            "train.batch_size": 4,
            "train.micro_batch_size": 4,
            "actor.num_gpus_per_node": 1,
            "ref.num_gpus_per_node": 1,
            "critic.num_gpus_per_node": 1,
            "vllm.num_engines": 1,
            "rpo.init.mode": "import",
            "rpo.init.source": source,
        } | {name.replace("__", "."): value for name, value in changes.items()}
        self.args = options.parse([w for name, value in words.items() for w in (f"--{name}", str(value))])
        self.config = RPOConfig.from_namespace(self.args.rpo)
        self.tokenizer = load_tokenizer(str(model), offline=True)
        self.cache = PathCache.open(f"sqlite:///{folder}/new.db", {})
        self.rollout = Rollout(Generator([], False), scorer, self.cache, self.tokenizer, self.config, self.args)

    def check(self) -> str:
        return check_source(import_source(self.args), QUESTIONS, self.tokenizer)

    def load(self):
        return import_paths(self.cache, self.rollout, QUESTIONS, import_source(self.args), self.config)

    def texts(self) -> dict[str, str]:
        return {p.question_id: path_text(p.token_ids, self.tokenizer) for p in self.cache.iter_paths()}


@pytest.fixture
def start(tmp_path):
    """Opens runs that import; their caches are closed at the end."""
    runs = []

    def make(source, model=None, scorer=None, **changes):
        runs.append(Run(tmp_path, str(source), model or model_dir("main"), scorer, **changes))
        return runs[-1]

    yield make
    for run in runs:
        run.cache.close()


@pytest.fixture
def jsonl(tmp_path):
    def write(*rows, name="source.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    return write


@pytest.fixture
def other_model(tmp_path) -> File:
    """The testbed's characters under other ids."""
    folder = tmp_path / "other"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(model_dir("main") / name, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: i if i < 3 else len(vocabulary) + 2 - i for token, i in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def solution(i, text=None, label=None, **fields):
    text = f"\\boxed{{{2 * i}}}" if text is None else text
    return {"question": f"{i}+{i}?", "answer": str(2 * i) if label is None else label, "worked": text} | fields


@pytest.fixture
def other_run(tmp_path):
    """A cache with a path for id0 and for id1, and one of a question that nobody else has."""
    tokenizer = load_tokenizer(str(model_dir("main")), offline=True)
    with PathCache.open(f"sqlite:///{tmp_path}/a/rpo_cache.db", {"tokenizer": tokenizer_fingerprint(tokenizer)}) as cache:
        cache.describe([*QUESTIONS[:2], Question("idx", "x", "y")], str(model_dir("main")))
        paths = [Path(q, (5, 6, 7, 1), (-0.5, -1.0, -0.25, -2.0), "stop", 1.0, 0.75) for q in ("id0", "id1", "idx")]
        cache.commit_initial(paths)
        cache.mark_initialised()
    return tmp_path / "a"


# ── Worked solutions ──


def test_worked_solutions_are_scored_and_end_with_the_end_token(start, jsonl):
    scorer = Rewards()
    run = start(f"{jsonl(solution(0), solution(1), solution(2, text='wrong'))}:worked", scorer=scorer)
    report = run.load()
    paths = run.cache.paths(["id0", "id1", "id2"])
    assert run.texts() == {"id0": "\\boxed{0}", "id1": "\\boxed{2}"}
    assert all(p.token_ids[-1] == run.tokenizer.eos_token_id and p.finish_reason == "stop" for p in paths.values())
    assert all(p.log_probs is None and (p.score, p.reward) == (1.0, 0.5) for p in paths.values())
    assert (report.read, report.matched, report.imported, report.through_text) == (3, 3, 2, 2)
    assert report.skipped == {"not_rewarded": 1}
    assert "2 of 4 questions have a path" in str(report) and "1 left out: not rewarded" in str(report)


def test_without_a_reward_at_rollout_a_solution_is_taken_as_right(start, jsonl):
    run = start(f"{jsonl(solution(0, text='anything'))}:worked", scorer=None)
    run.load()
    assert [(p.score, p.reward) for p in run.cache.iter_paths()] == [(1.0, 1.0)]


def test_an_experts_path_has_its_own_place_and_the_question_starts_without_one(start, jsonl):
    run = start(f"{jsonl(solution(0))}:worked", scorer=Rewards(), rpo__method=f"{EXPERT}:Expert")
    assert run.load().imported == 1
    assert run.cache.paths(["id0"]) == {} and run.cache.slots(["id0"])["id0"].keys() == {1}
    assert run.cache.question_ids(slot=1) == ["id0"]


def test_admit_any_takes_what_is_not_rewarded(start, jsonl):
    run = start(f"{jsonl(solution(2, text='wrong'))}:worked", scorer=Rewards(), rpo__update__admit="any")
    assert run.load().imported == 1


def test_of_several_solutions_the_first_one_admitted_counts(start, jsonl):
    file = jsonl(solution(1, text="wrong"), solution(1), solution(1, text="\\boxed{2} later"))
    run = start(f"{file}:worked", scorer=Rewards())
    report = run.load()
    assert run.texts() == {"id1": "\\boxed{2}"}
    assert report.skipped == {"not_rewarded": 1, "repeated": 1}


def test_what_cannot_be_a_path_is_counted_by_its_reason(start, jsonl):
    """--data.max_len 40 leaves 40 - 8 tokens after a prompt of 8; a character is a token, and the end token is one, too."""
    fits, too_long = "\\boxed{2}".rjust(31), "\\boxed{4}".rjust(32)
    file = jsonl(
        solution(1, text=fits),
        solution(2, text=too_long),
        solution(3, text=" "),
        solution(3, text=None, worked=None),
        solution(7),
    )
    run = start(f"{file}:worked", scorer=Rewards())
    report = run.load()
    assert report.imported == 1 and report.skipped == {"too_long": 1, "empty": 2, "unmatched": 1}


def test_nothing_admitted_is_an_error_that_says_why(start, jsonl, tmp_path):
    run = start(f"{jsonl(solution(1, text='2'))}:worked", scorer=Rewards())
    with pytest.raises(ExchangeError, match="no path could be imported(.|\n)*1 left out: not rewarded(.|\n)*boxed"):
        run.load()
    run.cache.close()
    PathCache.open(f"sqlite:///{tmp_path}/new.db", {"template": "other"}).close()  # as the next command may ask for


# ── Another run ──


def test_the_same_tokenizer_keeps_ids_log_probs_and_scores_exactly(start, other_run):
    scorer = Rewards()
    run = start(other_run, scorer=scorer)
    report = run.load()
    paths = run.cache.paths(["id0", "id1"])
    assert {tuple(p.token_ids) for p in paths.values()} == {(5, 6, 7, 1)}
    assert all(
        tuple(p.log_probs) == (-0.5, -1.0, -0.25, -2.0) and (p.score, p.reward) == (1.0, 0.75) for p in paths.values()
    )
    assert all(p.step == 0 and p.parent_id is None and p.prefix_length == 0 for p in paths.values())
    assert scorer.seen == []
    assert (report.matched, report.imported, report.through_text, report.skipped) == (2, 2, 0, {"unmatched": 1})


def test_another_tokenizer_goes_through_text_and_drops_the_log_probs(start, other_run, other_model):
    run = start(other_run, model=other_model)
    report = run.load()
    theirs = load_tokenizer(str(model_dir("main")), offline=True)
    [path, _] = run.cache.iter_paths()
    assert path.token_ids != (5, 6, 7, 1) and path.token_ids[-1] == 1 and path.log_probs is None
    assert path_text(path.token_ids, run.tokenizer) == path_text((5, 6, 7, 1), theirs)
    assert report.through_text == 2 and "2 made anew from their text, without log-probs" in str(report)


@pytest.fixture
def every_sample(tmp_path):
    """A cache with a wrong, a right and another right sample of id0, and a wrong one of id1, a slot each."""
    tokenizer = load_tokenizer(str(model_dir("main")), offline=True)
    with PathCache.open(f"sqlite:///{tmp_path}/a/rpo_cache.db", {"tokenizer": tokenizer_fingerprint(tokenizer)}) as cache:
        cache.describe(QUESTIONS[:2], str(model_dir("main")))
        samples = (("id0", 0, 0.0), ("id0", 1, 1.0), ("id0", 2, 1.0), ("id1", 0, 0.0))
        paths = [Path(q, (5 + slot, 1), (-0.5, -1.0), "stop", score, score, slot=slot) for q, slot, score in samples]
        cache.commit_initial(paths)
        cache.mark_initialised()
    return tmp_path / "a"


@pytest.mark.parametrize("form", ["cache", "export.jsonl"])
def test_a_question_gets_its_first_rewarded_sample_of_any_slot(start, every_sample, tmp_path, form):
    if form != "cache":
        assert main(["cache", "export", str(every_sample), str(tmp_path / form)]) == 0
    run = start(every_sample if form == "cache" else tmp_path / form, scorer=Rewards())
    assert "4 of 4 paths are of this run's questions" in run.check()
    report = run.load()
    [path] = run.cache.iter_paths()
    assert (path.question_id, path.slot, tuple(path.token_ids), path.score) == ("id0", 0, (6, 1), 1.0)
    assert (report.read, report.matched, report.imported, report.with_path) == (4, 4, 1, 1)
    assert report.skipped == {"not_rewarded": 2, "repeated": 1}


def test_where_wrong_paths_are_admitted_slot_0_comes_first(start, every_sample):
    run = start(every_sample, scorer=Rewards(), rpo__update__admit="any")
    report = run.load()
    assert [(p.question_id, tuple(p.token_ids), p.score) for p in run.cache.iter_paths()] == [
        ("id0", (5, 1), 0.0),
        ("id1", (5, 1), 0.0),
    ]
    assert report.skipped == {"repeated": 2}


# ── Token ids that the tokenizer does not have ──


@pytest.fixture
def padded(tmp_path) -> File:
    """The testbed's tokenizer, with 48 tokens, and a model with 64 rows of embedding."""
    folder = tmp_path / "padded"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_dir("main") / name, folder)
    config = json.loads((model_dir("main") / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 64}))
    return folder


def row_of(model, token_ids, **fields):
    mark = tokenizer_fingerprint(load_tokenizer(str(model), offline=True))
    return {"question_id": "id0", "token_ids": token_ids, "tokenizer": mark, "score": 1.0} | fields


def test_an_id_of_the_models_padding_is_a_token_like_any_other(start, padded, jsonl):
    run = start(jsonl(row_of(padded, [5, 63, 1])), model=padded)
    assert len(run.tokenizer) == 48
    run.check()
    run.load()
    [path] = run.cache.iter_paths()
    assert tuple(path.token_ids) == (5, 63, 1)


def test_an_id_that_the_model_has_not_is_refused_and_the_remedy_works(start, padded, jsonl):
    row = row_of(padded, [5, 64, 1], log_probs=[-0.5] * 3, text="\\boxed{0}")
    run = start(jsonl(row), model=padded, scorer=Rewards())
    for refusing in (run.check, run.load):
        with pytest.raises(
            ExchangeError, match="row 1: token id 64, and the model's last is 63. .*remove token_ids and log_p"
        ):
            refusing()
    jsonl({name: value for name, value in row.items() if name not in ("token_ids", "log_probs")})
    assert run.check().endswith("made anew from their text, without log-probs")
    run.load()
    assert run.texts() == {"id0": "\\boxed{0}"}


# ── Interrupted ──


def test_an_interrupted_import_goes_on_and_ends_as_if_it_had_not_been(start, jsonl, tmp_path):
    file = jsonl(*[solution(i) for i in range(4)])
    whole = start(f"{file}:worked", scorer=Rewards())
    whole.load()
    expected = list(whole.cache.iter_paths())
    whole.cache.close()
    (tmp_path / "new.db").unlink()
    part = start(f"{jsonl(solution(0), solution(1), name='part.jsonl')}:worked", scorer=Rewards())
    part.load()
    part.cache.close()
    again = start(f"{file}:worked", scorer=Rewards())
    report = again.load()
    assert list(again.cache.iter_paths()) == expected
    assert (report.imported, report.with_path, report.skipped) == (2, 4, {"repeated": 2})


def test_a_complete_initial_cache_needs_its_source_no_more(start, jsonl):
    run = start(f"{jsonl(solution(0))}:worked", scorer=Rewards())

    def fill():
        fill_initial_cache(run.cache, run.rollout, QUESTIONS, run.config, lambda: import_source(run.args))

    fill()
    before = list(run.cache.iter_paths())
    File(run.args.rpo.init.source.removesuffix(":worked")).unlink()
    fill()
    assert list(run.cache.iter_paths()) == before and run.cache.initialised


# ── Before an engine starts ──


def test_the_check_counts_what_matches_and_says_how_it_is_taken(start, other_run, other_model, jsonl):
    first = start(other_run)
    assert first.check().endswith("2 of 3 paths are of this run's questions, ids and log-probs as they are")
    first.cache.close()
    file = jsonl(solution(0), solution(9))
    run = start(f"{file}:worked", model=other_model)
    assert run.check().endswith("1 of 2 paths are of this run's questions, made anew from their text, without log-probs")


def test_the_check_tells_kept_ids_from_log_probs_that_are_there(start, jsonl):
    """Only of paths of this run's questions."""
    model = model_dir("main")
    bare, whole = row_of(model, [5, 1]), row_of(model, [5, 1], log_probs=[-0.5, -1.0])
    text, other = {"question_id": "id1", "text": "2"}, row_of(model, [5, 1], question_id="idx")
    for rows, how in (
        ((bare, bare), "2 of 2 paths are of this run's questions, ids of 2 as they are, 0 of them with log-probs"),
        ((bare, whole, other), "2 of 3 .* questions, ids of 2 as they are, 1 of them with log-probs"),
        ((whole, other), "1 of 2 .* questions, ids and log-probs as they are"),
        (
            (bare, whole, text),
            "ids of 2 as they are, 1 of them with log-probs, the others made anew from their text, without log-probs",
        ),
        ((text, other), "1 of 2 .* questions, made anew from their text, without log-probs"),
    ):
        run = start(jsonl(*rows))
        assert re.search(f"{how}$", run.check())
        run.cache.close()


def test_a_source_of_other_questions_is_refused(start, jsonl):
    run = start(f"{jsonl(solution(7), solution(1, label='9'))}:worked")
    with pytest.raises(ExchangeError, match="none of its 2 paths belongs to a question of this run"):
        run.check()
