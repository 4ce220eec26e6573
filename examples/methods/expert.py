"""Start questions that failed from the head of a worked solution, as BREAD does (arXiv 2506.17211).

    --rpo.method examples/methods/expert.py:Expert --rpo.init.mode import --rpo.init.source solutions.jsonl:solution

Imported paths have their own slot, which training never overwrites. After an all-wrong group, the next one continues the
imported path, cut as in ``rpo``. Otherwise, and for questions without an imported path, this is ``rpo``.

Measured on the testbed (24 steps of 16x4, three fresh seeds, worked solutions without mistakes): 0.863 +- 0.033 on main
(237k tokens, 77 s), 0.796 +- 0.046 on hard (264k, 75 s); plain ``rpo`` 0.881 (162k, 54 s) and 0.794 (186k, 65 s). No better,
for half again as many tokens on main. Then replays also went to questions that had never been asked, which start bare;
without these it was not measured.
"""

from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_rpo.algo.methods import RPO, Stored
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.option import option
from openrlhf_rpo.types import Path

EXPERT = 1  # the slot of the imported path


class Expert(RPO):
    import_slot = EXPERT

    update_on_all_wrong: str = option(
        "keep", "after a group without a rewarded sample: keep its path; the imported one is next", choices=("keep",)
    )

    def check_run(self, args: SimpleNamespace) -> None:
        super().check_run(args)
        if args.rpo.init.mode != "import":
            raise UsageError("Expert continues imported paths: add --rpo.init.mode import and --rpo.init.source")

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        last = stored.last_visit
        if last and last.n_rewarded == 0 and EXPERT in stored.paths and not self.worn_out(stored.visits):
            return (stored.paths[EXPERT],) * n_samples
        return super().paths(stored, n_samples)
