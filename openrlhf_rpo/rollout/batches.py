"""Makes the batch of each step: asks and generates groups until enough may be trained on."""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import SimpleNamespace

from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.algo.variance import CENTERED, has_signal
from openrlhf_rpo.errors import Failed
from openrlhf_rpo.rollout.rollout import Rollout
from openrlhf_rpo.rollout.selection import Selection
from openrlhf_rpo.rollout.unfinished import begin
from openrlhf_rpo.types import Begun, Group, Prefix


class Starved(Failed):
    """Dynamic sampling found too few groups whose samples differ."""


@dataclass(frozen=True)
class Batch:
    """The groups of a step: ``kept`` are trained on, ``dropped`` only stored, ``waiting`` left for later.

    Only stored: what dynamic sampling drops or does not need, and what is older than ``--rpo.async.max_age``. ``seconds`` by
    phase and ``metrics`` are the rollout's; ``failures`` counts the run's failed rewards so far.
    """

    kept: list[Group]
    dropped: list[Group]
    waiting: list[Group]
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: int = 0

    @property
    def groups(self) -> list[Group]:
        return self.kept + self.dropped


class Batches:
    """Makes one batch after another.

    ``begun``: groups to continue, from a resumed run or stopped by ``--rpo.tail``. ``out``: the questions of each batch that
    is made but not committed.
    """

    def __init__(self, rollout: Rollout, selection: Selection, args: SimpleNamespace) -> None:
        self.rollout = rollout
        self.selection = selection
        self.args = args
        self.config = rollout.config
        self.size = args.rollout.batch_size
        self.begun: list[Begun] = []
        self.out: dict[int, set[str]] = {}
        self._made: list[Group] = []
        self._waits = False

    @property
    def short(self) -> bool:
        """Whether questions in flight leave a batch short, or could the next one."""
        new = not self.begun  # a resumed run goes on with a batch that had enough
        return self._waits or bool(self.out) and new and not self.selection.stream.has(self.size, self._in_flight())

    def make(self, step: int) -> Batch | None:
        """Roll out a full batch of groups; None at the end of the data.

        Groups that are too old and, with dynamic sampling (DAPO), groups without signal are replaced by other questions; any
        surplus over a batch is only stored. Where too few questions are left because others are in flight, the next commit
        brings them back. Raises Starved after ``dynamic.max_batches`` batches of questions, or when too few untried ones are
        left.
        """
        rollout, parked, before = self.rollout, self.rollout.gate.parked, self._place_in_data()
        rollout.clock.start_step(present=("rollout", "reward"))
        kept: list[Group] = []
        dropped: list[Group] = []
        waiting: list[Group] = []
        tried = self.out[step] = set[str]()
        with rollout.awake():
            while len(kept) < self.size:
                missing, here = self.size - len(kept), self._place_in_data()
                self._need_questions(step, len(kept), len(kept) + len(dropped), len(tried))
                begun, in_flight = self._begun(step, tried), self._in_flight() - tried
                self._need_free_questions(step, missing, tried, in_flight)
                wanted = self._to_ask(len(kept), len(kept) + len(dropped), tried | in_flight)
                tail = 1.0 if tried else self.config.tail  # later rounds wait for all, or ever more groups would wait
                asked = self.selection.choose(math.ceil(wanted / tail - 1e-9), tried, step, begun, in_flight)
                if len(asked) < missing and len(self.out) > 1:
                    self._go_back(here)
                    self._wait()
                    continue
                if len(asked) < missing:  # a run with more passes over the data goes on from here
                    self._go_back(before)
                    self._made, rollout.work = [], None
                    return None
                if wanted > missing:  # which groups are surplus must not depend on why they were asked
                    asked.sort(key=lambda one: self._place(step, one.question.question_id))
                tried |= {one.question.question_id for one in asked}
                self._made = kept + dropped + waiting
                for group in rollout.roll_out(asked, step, None if tail == 1 else wanted):
                    if group.waits:  # it has no scores yet
                        waiting.append(group)
                    elif len(kept) < self.size and self.trains(group, step):
                        kept.append(group)
                    else:
                        dropped.append(group)
        self._made, rollout.work = [], None
        waiting = [replace(group, asked="unfinished", due=step + 1) for group in waiting]
        self.begun += [group.begun for group in waiting]
        seconds = dict(rollout.clock.seconds)
        seconds["rollout"] -= rollout.gate.parked - parked
        failures = rollout.scorer.failures if rollout.scorer is not None else 0
        return Batch(kept, dropped, waiting, seconds, rollout.engine_metrics(kept + dropped + waiting), failures)

    def go_on(self, begun: Iterable[Begun]) -> None:
        """Continue these groups when they are due; those that changed options do not allow to are begun again."""
        for group in begun:
            if not self.rollout.fits(self.selection.by_id[group.question_id], group.samples):
                group = replace(group, samples=begin([Prefix()] * self.args.rollout.n_samples_per_prompt))
            self.begun.append(group)

    def on_the_way(self) -> list[Begun]:
        """Every begun group of no finished batch, as it is now; the rollout must stand still."""
        now = self._made + (self.rollout.work.groups if self.rollout.work is not None else [])
        return [group.begun for group in now] + self.begun

    def committed(self, step: int) -> None:
        self.out.pop(step, None)
        self._waits = False

    def n_too_old(self, groups: Iterable[Group], step: int) -> int:
        """How many groups have tokens of a policy over ``max_age`` steps behind the one that ``step`` trains."""
        ahead = self.args.train.async_enable and self.args.train.async_queue_size
        if not ahead:  # groups that wait because of --rpo.tail always train
            return 0
        oldest = step - 1 - self.config.async_.max_age
        return sum(group.version is not None and group.version < oldest for group in groups)

    def _place_in_data(self) -> tuple[int, list[str], list[Begun]]:
        stream = self.selection.stream
        return stream.position, list(stream.postponed), list(self.begun)

    def _go_back(self, place: tuple[int, list[str], list[Begun]]) -> None:
        stream = self.selection.stream
        stream.position, stream.postponed, self.begun = place

    def _wait(self) -> None:
        """Until the next commit; it counts as rollout, off which ``make`` takes what was parked."""
        self._waits = True
        with self.rollout.clock("rollout"):
            self.rollout.gate.park(lambda: not self._waits)

    def _in_flight(self) -> set[str]:
        """The questions of every group that is begun and not committed."""
        return set().union({group.question_id for group in self.begun}, *self.out.values())

    def _begun(self, step: int, tried: set[str]) -> list[Begun]:
        """Take the begun groups that are due."""
        due, later = [], []
        for group in self.begun:
            (due if group.due <= step and group.question_id not in tried else later).append(group)
        self.begun = later
        return due

    def _to_ask(self, n_kept: int, n_done: int, taken: Set[str]) -> int:
        """How many questions to ask next: with dynamic sampling, enough to fill the batch at the share kept so far.

        One per missing group would take many rounds, each as long as its longest answer. At most a batch; any more than are
        missing come from this pass over the data, without those that are ``taken``.
        """
        missing = self.size - n_kept
        if not self.args.algo.dynamic_filtering_enable or not n_kept:
            return missing
        return max(missing, min(math.ceil(missing * n_done / n_kept), self.size, self.selection.stream.left(taken)))

    def _place(self, step: int, question_id: str) -> float:
        return keyed_generator(self.args.train.seed, step, question_id, "order").random()

    def _need_questions(self, step: int, n_kept: int, n_done: int, n_tried: int) -> None:
        """A question is tried once per step, so a small data set may run out before ``dynamic.max_batches`` are."""
        n, most = len(self.selection.stream.questions), self.size * self.config.dynamic.max_batches
        if n_done >= most or n - n_tried < self.size - n_kept:
            raise Starved(
                f"step {step}: {n_done} of {n} questions tried, only {n_kept} of {self.size} groups {self._wanted()}. "
                "Make the questions harder or easier, raise --rollout.n_samples_per_prompt, lower --rollout.batch_size, or, "
                f"where questions are left, raise --rpo.dynamic.max_batches (now {self.config.dynamic.max_batches})."
            )

    def _wanted(self) -> str:
        """What a group must be to be trained on."""
        if not self.args.algo.dynamic_filtering_enable:
            return f"are at most --rpo.async.max_age {self.config.async_.max_age} steps old"
        low, high = self.args.algo.dynamic_filtering_range
        differ = "samples that differ and " if self.args.algo.advantage.estimator in CENTERED else ""
        return f"have {differ}a mean score between {low:g} and {high:g} (--algo.dynamic_filtering_range)"

    def _need_free_questions(self, step: int, missing: int, tried: set[str], in_flight: set[str]) -> None:
        """Groups that a resumed run continues later are in flight, too, and no commit brings them back before."""
        stream = self.selection.stream
        more = len(self.out) == 1 and stream.remaining > len(stream.questions)  # else a commit brings some, or the data end
        if tried and in_flight and more and not stream.has(missing, tried | in_flight):
            raise Starved(
                f"step {step}: {len(tried)} of {len(stream.questions)} questions tried, {len(in_flight)} others are in "
                f"flight, and {missing} groups are missing: lower --train.async_queue_size or --rollout.batch_size"
            )

    def trains(self, group: Group, step: int) -> bool:
        """Whether the group is young enough and, with dynamic sampling, its mean score is in range and its scores differ,
        where the estimator compares them."""
        if self.n_too_old([group], step) and self.rollout.scorer is not None:  # a reward model scores what is trained on
            return False
        if not self.args.algo.dynamic_filtering_enable:
            return True
        scores = [s.score for s in group.samples]
        low, high = self.args.algo.dynamic_filtering_range
        differ = has_signal(scores) or self.args.algo.advantage.estimator not in CENTERED
        return differ and low < fmean(scores) < high
