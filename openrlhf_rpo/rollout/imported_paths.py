"""Import paths of another run, another model or a data set as the initial cache.

Token ids and log-probs of the same tokenizer are kept. A path of another tokenizer is tokenized again from its text and
loses its log-probs, so its prefix never carries loss (``rollout/experience.py``).

A path's score is kept. A path without one is scored like a sample, or counts as right (1.0) if the run has a reward model,
which only runs in training. For each question the first admitted path is used; those of a cache come in the order of slots.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from openrlhf_rpo.algo.methods.decide import score_and_reward
from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.matching import QuestionIndex
from openrlhf_rpo.exchange.portable import PortablePath
from openrlhf_rpo.exchange.sources import Source
from openrlhf_rpo.exchange.text import path_ids, vocabulary
from openrlhf_rpo.rollout.rollout import Rollout
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.tables import batched
from openrlhf_rpo.types import Group, Path, Prefix, Question, Sample

_SKIPPED = {
    "unmatched": "of questions that this run does not have",
    "empty": "empty",
    "too_long": "too long for --rollout.max_new_tokens or --data.max_len",
    "not_rewarded": "not rewarded",
    "repeated": "of questions that already have a path",
}
_RIGHT = 1.0
_REJECTED = (
    "without log-probs, and --rpo.method {name} checks a path by them: it rejects each of these whole and starts from the "
    "bare question, as if there were none. Import a cache, or an export with log_probs, of the same tokenizer, or use "
    "another method (--rpo.method rpo)"
)


@dataclass
class ImportReport:
    """Counts of a source's paths: each is ``imported``, or ``skipped`` for a reason.

    ``rejected`` says that the method cannot use some of them. ``with_path`` counts the questions with a path, including
    those from an earlier, interrupted import.
    """

    source: str
    questions: int
    read: int = 0
    imported: int = 0
    through_text: int = 0
    rejected: str = ""
    skipped: Counter[str] = field(default_factory=Counter)
    with_path: int = 0

    @property
    def matched(self) -> int:
        """Paths of the run's questions, imported or not."""
        return self.read - self.skipped["unmatched"]

    def __str__(self) -> str:
        lines = [
            f"Initial cache: {self.with_path:,} of {self.questions:,} questions have a path, "
            f"{self.imported:,} imported now from {self.source} ({self.matched:,} of its {self.read:,} paths match)"
        ]
        if self.through_text:
            lines.append(f"  {self.through_text:,} made anew from their text, without log-probs")
        if self.rejected:
            lines.append(f"  Warning: {self.rejected}")
        lines += [f"  {self.skipped[cause]:,} left out: {why}" for cause, why in _SKIPPED.items() if self.skipped[cause]]
        return "\n".join(lines)


def import_paths(
    cache: PathCache, rollout: Rollout, questions: Sequence[Question], source: Source, config: RPOConfig
) -> ImportReport:
    """Commit the paths of ``source`` to the initial cache, batch by batch; an interrupted import can be continued.

    They go into the method's ``import_slot``. Raises ExchangeError if no path could be admitted.
    """
    slot = config.method.import_slot
    report = ImportReport(str(source), len(questions))
    index, done = QuestionIndex(questions), set(cache.question_ids(slot=slot))
    tokenizer, size = tokenizer_fingerprint(rollout.tokenizer), vocabulary(rollout.tokenizer)
    with tqdm(desc="Initial cache, import", unit="path", delay=2) as bar:
        for batch in batched(source.paths(tokenizer)):
            report.read += len(batch)
            candidates = [
                candidate
                for path in batch
                if (candidate := _candidate(path, index, done, rollout, tokenizer, size, report)) is not None
            ]
            _score(candidates, rollout)
            entering = _admitted(candidates, done, config.method.admits_wrong, report)
            if entering:  # otherwise the cache would no longer count as empty
                cache.commit_initial([replace(path, slot=slot) for path in entering])
            bar.update(len(batch))
    if not done:
        raise ExchangeError(
            f"{source}: no path could be imported.\n{report}\nA worked solution must end as the reward expects "
            "(math: the answer in \\boxed{} or announced); --rpo.update.admit any (method rpo) also admits paths that are "
            "not rewarded"
        )
    report.with_path = len(done)
    if config.method.scores and (n := cache.without_log_probs()):
        report.rejected = f"{n:,} paths are {_REJECTED.format(name=config.method.name)}"
    return report


def not_verifiable(url: str, config: RPOConfig) -> str | None:
    """A warning at the start of a run about imported paths that its method will reject; None without any."""
    if not config.method.scores or PathCache.is_missing(url):
        return None
    with PathCache.open_to_read(url) as cache:
        n = cache.without_log_probs() if cache.latest_step == 0 else 0
    return f"{n:,} paths of the cache are {_REJECTED.format(name=config.method.name)}" if n else None


@dataclass
class _Candidate:
    """A path in the run's token ids; ``scored``: it came with a score."""

    question: Question
    path: Path
    scored: bool
    through_text: bool


def _candidate(
    path: PortablePath,
    index: QuestionIndex,
    done: set[str],
    rollout: Rollout,
    tokenizer: str,
    size: int,
    report: ImportReport,
) -> _Candidate | None:
    """The path for the run's question and tokenizer; None, counted in ``report``, if the run cannot use it."""
    question = index.find(path)
    if question is None:
        report.skipped["unmatched"] += 1
        return None
    if question.question_id in done:
        report.skipped["repeated"] += 1
        return None
    own = path.is_of(tokenizer)
    if own:
        path.need_known(size)
    ids = path.token_ids if own else path_ids(path.text or "", path.finish_reason, rollout.tokenizer)
    assert ids is not None
    if not ids or (not own and not (path.text or "").strip()):
        report.skipped["empty"] += 1
        return None
    if len(ids) > rollout.max_path_length(question, rollout.sampling):
        report.skipped["too_long"] += 1
        return None
    score = _RIGHT if path.score is None else path.score
    reward = score if path.reward is None else path.reward
    made = Path(question.question_id, ids, path.log_probs if own else None, path.finish_reason, score, reward)
    return _Candidate(question, made, scored=path.score is not None, through_text=not own)


def _score(candidates: list[_Candidate], rollout: Rollout) -> None:
    """Score the paths that came without a score, unless a reward model does that later."""
    if rollout.scorer is None:
        return
    waiting = [c for c in candidates if not c.scored]
    groups = [Group(c.question, (Sample(Prefix(), c.path.token_ids, (), c.path.finish_reason),)) for c in waiting]
    for candidate, group in zip(waiting, rollout.score(groups), strict=True):
        score, reward = score_and_reward(group.samples[0])
        candidate.path = replace(candidate.path, score=score, reward=reward)


def _admitted(candidates: list[_Candidate], done: set[str], admits_wrong: bool, report: ImportReport) -> list[Path]:
    """The paths to store, one per question; updates ``done`` and the report."""
    entering = []
    for candidate in candidates:
        if candidate.question.question_id in done:
            report.skipped["repeated"] += 1
        elif not (admits_wrong or rewarded(candidate.path.score)):
            report.skipped["not_rewarded"] += 1
        else:
            done.add(candidate.question.question_id)
            report.imported += 1
            report.through_text += candidate.through_text
            entering.append(candidate.path)
    return entering
