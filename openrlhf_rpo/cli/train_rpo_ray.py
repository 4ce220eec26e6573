"""``python -m openrlhf_rpo.cli.train_rpo_ray``: train with RPO on OpenRLHF, or with ``--rpo.enable false`` without."""

import sys
from types import SimpleNamespace

from openrlhf_rpo import upstream
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cli.options import OptionError, UsageError, parse
from openrlhf_rpo.config import RPOConfig


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 the command cannot work (said in one message); what fails later raises."""
    try:
        upstream.check_version()
        args = parse(sys.argv[1:] if argv is None else argv)
        prepare(args)
    except (UsageError, OptionError, CacheError, upstream.UpstreamError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    run(args)
    return 0


def prepare(args: SimpleNamespace) -> None:
    """Every check that can be made before a process of the run exists, then Ray."""
    from openrlhf_rpo.cli.cluster import choose_device, connect

    device = choose_device(args)
    from openrlhf_rpo.cli.preflight import check_run  # imports OpenRLHF: only now is the device known

    if args.rpo.enable:
        args.vllm.enable_prefix_caching = True
        check_run(args, RPOConfig.from_namespace(args.rpo))
    connect(args, device)


def run(args: SimpleNamespace) -> None:
    """OpenRLHF's own ``train``, with our engine, policy actor and trainer in it."""
    if not args.rpo.enable:
        upstream.train(args)
        return
    from openrlhf_rpo.rollout.engine import RPOEngine
    from openrlhf_rpo.trainer import RPOTrainer
    from openrlhf_rpo.training.policy_actor import RPOPolicyActor

    with upstream.replaced(RPOEngine, RPOPolicyActor, _OnThisNode(RPOTrainer), "processed_logprobs"):
        upstream.train(args)


class _OnThisNode:
    """A Ray actor class whose actors live on the driver's node, where the path cache is."""

    def __init__(self, actor_class) -> None:
        self.actor_class = actor_class

    def remote(self, *args, **kwargs):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return self.actor_class.options(num_cpus=0, scheduling_strategy=here).remote(*args, **kwargs)


if __name__ == "__main__":
    sys.exit(main())
