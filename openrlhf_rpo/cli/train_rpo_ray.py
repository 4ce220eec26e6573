"""``python -m openrlhf_rpo.cli.train_rpo_ray``: train with RPO, or with plain OpenRLHF (``--rpo.enable false``)."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo import upstream
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import Failed, guarded
from openrlhf_rpo.launch.options import DRY_RUN, parse
from openrlhf_rpo.platform import guard


def add_parser(commands: Any) -> None:
    """Add ``train`` to the sub-commands of ``openrlhf-rpo``; ``launch.options`` parses its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train with RPO (the same as python -m openrlhf_rpo.cli.train_rpo_ray; --help lists its options)",
        add_help=False,
    )
    parser.set_defaults(run=lambda args: train(args.training), takes_training_options=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the run cannot start or failed, 130 Ctrl-C or TERM."""
    return guarded(lambda: train(sys.argv[1:] if argv is None else argv))


def train(words: Sequence[str]) -> int:
    """Check the command, then train. Raises UserError."""
    guard.install()
    guard.allow(False)  # until ``choose_device`` has read the options
    if DRY_RUN in words:
        from openrlhf_rpo.cli.doctor import examine

        return examine(words)
    upstream.check_version()
    args = parse(words)
    upstream.check_packages(args)
    prepare(args)
    return run(args)


def prepare(args: SimpleNamespace) -> None:
    """Make every check that needs no process of the run, then connect to Ray. Raises UserError."""
    from openrlhf_rpo.launch.cluster import choose_device, connect

    device = choose_device(args)
    from openrlhf_rpo.launch.preflight import check_run, load_tokenizer  # imports OpenRLHF: only after choose_device

    if args.rpo.enable:
        args.vllm.enable_prefix_caching = True
        check_run(args, RPOConfig.from_namespace(args.rpo))
        print(f"Method: {args.rpo.method}", flush=True)
    else:
        load_tokenizer(args)
    connect(args, device)


def run(args: SimpleNamespace) -> int:
    """Run OpenRLHF's ``train``, with our engine, model actors and trainer in it. Returns the exit status."""
    if not args.rpo.enable:
        upstream.train(args)
        return 0
    import ray

    from openrlhf_rpo.launch.cluster import settled
    from openrlhf_rpo.launch.failures import describe, what_is_safe
    from openrlhf_rpo.rollout.engine import engine_for
    from openrlhf_rpo.trainer import RPOTrainer
    from openrlhf_rpo.training.reference_actor import RPOReferenceActor
    from openrlhf_rpo.training.resumable import RPOCriticActor, RPOPolicyActor

    models = {"policy_actor": RPOPolicyActor, "critic_actor": RPOCriticActor, "reference_actor": RPOReferenceActor}
    engine, trainer = engine_for(args.rpo, args.ds.param_dtype), _OnThisNode(RPOTrainer)
    replaced = upstream.replaced(engine, **models, trainer=trainer)
    try:
        with replaced:
            upstream.train(args)
    except Exception as error:  # of any process: the driver only explains it
        traceback.print_exc()
        message = describe(settled(error), args)
        ray.shutdown()  # a local Ray stops, and the last output of its processes is printed
        raise Failed(message) from error
    except KeyboardInterrupt:
        ray.shutdown()
        raise KeyboardInterrupt(what_is_safe(args)) from None
    return 0


class _OnThisNode:
    """A Ray actor class whose actors live on the driver's node, where the path cache is."""

    def __init__(self, actor_class) -> None:
        self.actor_class = actor_class

    def remote(self, *args, **kwargs):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from openrlhf_rpo.launch.cluster import logins

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        placed = self.actor_class.options(num_cpus=0, scheduling_strategy=here)
        return placed.remote(*args, logins=logins(), **kwargs)


if __name__ == "__main__":
    sys.exit(main())
