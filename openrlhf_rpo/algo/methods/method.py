"""The interface of a method: which stored path each sample continues, what is stored afterwards, and what carries loss.

To write your own, subclass ``Method``, or ``RPO`` to keep most of it, and override what differs. Every subclass becomes a
frozen dataclass whose fields are its options. docs/methods.md has a complete example.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar, dataclass_transform

from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.option import option
from openrlhf_rpo.types import Group, LogProbs, Path, Rejected, Visit


@dataclass(frozen=True)
class Stored:
    """What the cache holds for one question: its paths by slot, and its visits, oldest first.

    ``visits`` has all of them if the method ``reads_history``, else only the newest.
    """

    paths: Mapping[int, Path] = field(default_factory=dict)
    visits: tuple[Visit, ...] = ()

    @property
    def last_visit(self) -> Visit | None:
        """None before the first group."""
        return self.visits[-1] if self.visits else None

    def in_turn(self, n_samples: int) -> tuple[Path, ...]:
        """A path for each sample, cycling through the slots; empty if none is stored."""
        slots = sorted(self.paths)
        return tuple(self.paths[slots[i % len(slots)]] for i in range(n_samples)) if slots else ()


@dataclass(frozen=True)
class Cut:
    """A group about to be cut: the path that each sample continues, the question's visits, and a keyed generator.

    ``log_probs`` has the current policy's log-prob of every token of each path if the method ``scores``; else it is empty.
    """

    paths: tuple[Path, ...]
    generator: random.Random
    visits: tuple[Visit, ...] = ()
    log_probs: tuple[LogProbs, ...] = ()

    @property
    def path(self) -> Path:
        """The first sample's path, which all samples share unless ``Method.paths`` returns different ones."""
        return self.paths[0]

    @property
    def n_samples(self) -> int:
        return len(self.paths)

    @property
    def shortest_path(self) -> int:
        """The paper's l in tokens: the shortest path of the question's last group; ``path``'s length before any group."""
        return self.visits[-1].shortest_path if self.visits else len(self.path)

    def alike(self, draw: Callable[[], int]) -> tuple[int, ...]:
        """One cut shared by all samples."""
        return (draw(),) * self.n_samples

    def each(self, draw: Callable[[], int]) -> tuple[int, ...]:
        """One cut per sample."""
        return tuple(draw() for _ in range(self.n_samples))


@dataclass(frozen=True)
class Scored:
    """A group after its step: scores, shaped rewards and path lengths (tokens) per sample, and a keyed generator.

    ``has_path``: the cache has a path in slot 0 of the question.
    """

    scores: tuple[float, ...]
    rewards: tuple[float, ...]
    path_lengths: tuple[int, ...]
    has_path: bool
    generator: random.Random

    @property
    def right(self) -> list[int]:
        """Indices of the samples with a score above 0."""
        return [i for i, score in enumerate(self.scores) if rewarded(score)]

    @property
    def wrong(self) -> list[int]:
        return [i for i, score in enumerate(self.scores) if not rewarded(score)]


@dataclass(frozen=True)
class Choice:
    """What to store. ``samples``: slot -> index of the sample whose path goes there; other slots keep their paths.

    ``outcome`` is the reason in one word; the run counts them. ``start_bare``: the question is not replayed until its next
    group, which starts from the bare question.
    """

    samples: Mapping[int, int]
    outcome: str
    start_bare: bool = False


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class Method:
    """The default: every group starts from the bare question, responses carry loss, and every sample is stored.

    A field made with ``option`` is also a command line option: ``cut_max`` is ``--rpo.cut.max`` (the first underscore
    becomes a dot). Methods with the same field share the option.
    """

    name: ClassVar[str]
    """Defaults to the class name in lower case."""
    scores: ClassVar[bool] = False
    """``cuts`` needs the current policy's log-probs of the stored tokens: one extra forward pass, at temperature 1."""
    import_slot: ClassVar[int] = 0
    """The slot for paths of ``--rpo.init.mode import``."""
    sets: ClassVar[Mapping[str, object]] = {}
    """Defaults for other options, full name -> value; an option given on the command line wins."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__.lower())
        dataclass(frozen=True, kw_only=True)(cls)

    def check(self) -> None:
        """Raise OptionError if the method's options contradict each other."""

    def check_run(self, args: SimpleNamespace) -> None:
        """Raise UsageError if the method cannot work with the run's other options (``args.algo...``).

        Here: if it ``scores``, which engines do at temperature 1, but samples are drawn otherwise.
        """
        if self.scores and (args.rollout.temperature, args.rollout.top_p) != (1, 1):
            raise UsageError(
                f"--rpo.method {self.name} compares log-probs at temperature 1: it needs --rollout.temperature 1 and "
                f"--rollout.top_p 1 (they are {args.rollout.temperature:g} and {args.rollout.top_p:g})"
            )

    @property
    def replay_share(self) -> float:
        """Share of a batch that replays stored paths. 0: questions come in data order and continue what they have stored."""
        return 0.0

    @property
    def continues(self) -> bool:
        """Whether any group may continue stored paths."""
        return type(self).paths is not Method.paths

    @property
    def reads_history(self) -> bool:
        """Whether ``visits`` must hold all visits of a question."""
        return False

    @property
    def admits_wrong(self) -> bool:
        """Whether wrong paths may enter the initial cache."""
        return False

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        """The stored path that each sample continues; empty to start the group from the bare question."""
        return ()

    def cuts(self, cut: Cut) -> Sequence[int]:
        """m for each sample, the number of tokens dropped from the end of its path: 0 <= m <= path length.

        If the method ``scores``, a path with an end token and m = 0 is the sample, and nothing is generated.
        """
        raise NotImplementedError(f"method {self.name} continues stored paths, so it needs cuts()")

    def rejected(self, path: Path, kept: int, log_probs: LogProbs) -> Rejected | None:
        """How to draw the token after the first ``kept`` tokens of ``path``; None: as usual.

        ``log_probs``: the current policy's, one per token of the path.
        """
        return None

    def budget(self, prefix_length: int, cut: int, remaining: int) -> int:
        """Tokens to generate after the head of a stored path: 1 to ``remaining``, what it leaves of the longest path."""
        return remaining

    def loss_from(self, prefix_lengths: Sequence[int]) -> Sequence[int]:
        """For each sample, the first token of its path that carries loss; by default the first response token."""
        return prefix_lengths

    def baselines(self, group: Group, rewards: Sequence[float]) -> Sequence[float] | None:
        """What to subtract from each reward before the estimator sees it; None: nothing.

        ``rewards`` are shaped and penalized, in the order of ``group.samples``. ``group.visits`` are the earlier visits.
        """
        return None

    def prefix_advantages(self, group: Group, rewards: Sequence[float]) -> Sequence[float] | None:
        """For each sample, the advantage of prefix tokens that carry loss; None: the same as its response's."""
        return None

    def store(self, group: Scored) -> Choice:
        """Which samples enter the cache, and in which slot."""
        return every(group)


def every(group: Scored) -> Choice:
    """Store every sample, right or wrong, each in its own slot."""
    return Choice({i: i for i in range(len(group.scores))}, "every")
