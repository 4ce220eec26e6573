"""``python -m openrlhf_rpo.cli.train_rpo_ray``: train with RPO on OpenRLHF, or with ``--rpo.enable false`` without."""

import sys
import traceback
from types import SimpleNamespace

from openrlhf_rpo import upstream
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cli.options import DRY_RUN, OptionError, UsageError, parse
from openrlhf_rpo.config import RPOConfig


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 the command cannot work (said at once), 1 the run failed, 130 Ctrl-C (said at the end)."""
    words = sys.argv[1:] if argv is None else argv
    if DRY_RUN in words:
        from openrlhf_rpo.cli.doctor.command import run as examine

        return examine(words)
    try:
        upstream.check_version()
        args = parse(words)
        prepare(args)
    except (UsageError, OptionError, CacheError, upstream.UpstreamError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before the run began", file=sys.stderr)
        return 130
    return run(args)


def prepare(args: SimpleNamespace) -> None:
    """Every check that can be made before a process of the run exists, then Ray."""
    from openrlhf_rpo.cli.cluster import choose_device, connect

    device = choose_device(args)
    from openrlhf_rpo.cli.preflight import check_run, load_tokenizer  # imports OpenRLHF: only now is the device known

    if args.rpo.enable:
        args.vllm.enable_prefix_caching = True
        check_run(args, RPOConfig.from_namespace(args.rpo))
        cut, loss, update = args.rpo.cut.rule, args.rpo.prefix_loss.mode, args.rpo.update.rule
        print(
            f"Cut rule {cut}, update rule {update}, loss on prefixes: {loss}", flush=True
        )  # by default one follows the other
    else:
        load_tokenizer(args)
    connect(args, device)


def run(args: SimpleNamespace) -> int:
    """OpenRLHF's own ``train``, with our engine, model actors and trainer in it. Exit status as of ``main``."""
    if not args.rpo.enable:
        upstream.train(args)
        return 0
    from openrlhf_rpo.cli.cluster import disconnect, settled
    from openrlhf_rpo.cli.failures import describe
    from openrlhf_rpo.rollout.engine import RPOEngine
    from openrlhf_rpo.trainer import RPOTrainer
    from openrlhf_rpo.training.reference_actor import RPOReferenceActor
    from openrlhf_rpo.training.resumable import RPOCriticActor, RPOPolicyActor

    models = {"policy_actor": RPOPolicyActor, "critic_actor": RPOCriticActor, "reference_actor": RPOReferenceActor}
    replaced = upstream.replaced(RPOEngine, **models, trainer=_OnThisNode(RPOTrainer), logprobs_mode="processed_logprobs")
    try:
        with replaced:
            upstream.train(args)
    except Exception as error:  # of whatever process: the driver has nothing left to do but to say what it means
        traceback.print_exc()
        message = describe(settled(error), args)
        disconnect()
        print(message, file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt as error:
        disconnect()
        print(describe(error, args), file=sys.stderr, flush=True)
        return 130
    return 0


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
