"""The arms of the frontier by name: method, batch shape, learning rate and number of steps.

Learning rates and shapes are the best tried for each arm, on seeds other than a report's (``--lr`` and ``--shape`` try
others).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

# The moving average of the weights over about five steps, which is saved and evaluated at the end.
AVERAGED = {"train.enable_ema": True, "train.ema_beta": 0.8}
BRIEFLY = {"train.enable_ema": True, "train.ema_beta": 0.7}  # over about three steps
REINFORCE = {"algo.advantage.estimator": "reinforce"}  # over the frontier's group_norm
RAFT = {"rpo.preset": "raft", **REINFORCE}
PASSES = "train.max_epochs"  # how often a step trains on its batch
BATCH = "train.batch_size"  # samples per update
METHODS = Path(__file__).resolve().parents[1] / "examples" / "methods"


@dataclass(frozen=True)
class Arm:
    """One way to train: steps of questions x samples, learning rate, and options beyond the frontier's."""

    name: str
    steps: int
    lr: float
    questions: int = 8
    samples: int = 4
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        """Questions x samples of a step, and the samples per update where a step has several."""
        return f"{self.questions}x{self.samples}" + (f"by{self.options[BATCH]}" if BATCH in self.options else "")

    @property
    def label(self) -> str:
        """The name with shape, passes over a batch and learning rate, for folders and tables."""
        passes = f"-{self.options[PASSES]}passes" if PASSES in self.options else ""
        return f"{self.name}-{self.shape}{passes}-lr{self.lr:g}"

    def named(self, name: str, options: Mapping[str, object]) -> "Arm":
        """A copy with another name and more options."""
        return replace(self, name=name, options={**self.options, **options})


def own(name: str, file_and_class: str, options: Mapping[str, object] | None = None) -> Arm:
    """A method of examples/methods, with the shape of RPO."""
    return RPO.named(name, {"rpo.method": f"{METHODS}/{file_and_class}", **(options or {})})


PLAIN = Arm("grpo", 32, 3e-4, options={"rpo.enable": "false"})
RPO = Arm("rpo", 24, 3e-4, questions=16, options={"rpo.method": "rpo"})
VERIFY = Arm("verify", 32, 3e-4, options={"rpo.method": "verify", **AVERAGED})
# Only what is reused differs.
EQUAL = Arm("", 16, 5e-4, options={**RAFT, **BRIEFLY})
DRAFTS, TAIL = {"rpo.drafts": "auto"}, {"rpo.tail": 0.75}
# Uses of the cache that need no stored prefix: each alone, and together.
USES: dict[str, dict[str, object]] = {
    "alone": {},
    "drafts": DRAFTS,
    "tail": TAIL,
    "all": DRAFTS | TAIL,
}
# GRPO on our runner, so that only the use differs.
FULL = Arm("", 32, 3e-4, options={"rpo.method": "off", "rpo.preset": "grpo", **BRIEFLY})
# A batch is generated while the step before trains; ``partial`` also stops samples at every weight sync.
AHEAD = {"train.async_enable": True}
PACES: dict[str, dict[str, object]] = {"sync": {}, "async": AHEAD, "partial": AHEAD | {"train.partial_rollout_enable": True}}
RAFTS = {
    name: EQUAL.named(name, {"rpo.method": method})
    for name, method in {"raft": "off", "rpo_raft": "rpo", "verify_raft": "verify"}.items()
}
PACED = {"off": FULL, **RAFTS}


def arms(level: str) -> dict[str, Arm]:
    """Name -> arm, tuned for a level of the testbed."""
    plain = replace(PLAIN, questions=16, steps=16) if level == "main" else PLAIN
    every = [
        plain,
        plain.named("grpo_averaged", AVERAGED),
        *(FULL.named(f"grpo_{use}", options) for use, options in USES.items()),
        FULL.named("dapo", {"rpo.preset": "dapo"}),
        *(EQUAL.named(f"raft_{use}", {"rpo.method": "off", **options}) for use, options in USES.items()),
        *RAFTS.values(),
        *(arm.named(f"{method}_{pace}", more) for method, arm in PACED.items() for pace, more in PACES.items()),
        replace(FULL.named("paper", {"rpo.method": "paper"}), lr=3e-5),
        RPO,
        RPO.named("rpo_averaged", AVERAGED),
        RPO.named("uncertain", {"rpo.cut.at": "uncertain", "rpo.cut.max": "ratio:1"}),
        VERIFY,
        own("adaptive", "adaptive.py:Adaptive"),
        own("tree", "tree.py:Tree"),
        own("tree_segments", "tree.py:Tree", {"rpo.tree.segments": "true", **REINFORCE}),
        own("failure", "failure.py:Failure"),
        own("pivot", "pivot.py:Pivot"),
        own("expert", "expert.py:Expert", {"rpo.init.mode": "import", "rpo.init.source": "{data}/solutions.jsonl:solution"}),
        replace(own("history", "history.py:History", REINFORCE), steps=16),
    ]
    return {arm.name: arm for arm in every}
