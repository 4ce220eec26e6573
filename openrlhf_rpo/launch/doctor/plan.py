"""The seconds that a step of the given command takes on GPUs, for the doctor, by the model in ``seconds``.

Answer lengths and the share reused are unknown in advance: they are assumed, and said.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from openrlhf_rpo.algo.cuts import parse_largest
from openrlhf_rpo.algo.methods import Method
from openrlhf_rpo.config import RPOConfig, limits_of
from openrlhf_rpo.launch.cluster import required_devices
from openrlhf_rpo.launch.doctor import seconds
from openrlhf_rpo.launch.doctor.findings import PASS, Finding
from openrlhf_rpo.launch.doctor.memory import ModelShape
from openrlhf_rpo.launch.doctor.seconds import Cluster, Drafts, Rates, Work
from openrlhf_rpo.training.passes import needs_old_log_probs, shares_prefixes
from openrlhf_rpo.upstream import n_processes

ACCEPTED = 0.65
"""The chance of accepting a drafted token after accepted ones."""


def a_step(shape: ModelShape, args: SimpleNamespace, config: RPOConfig, prompt: float, gpu: str) -> Finding:
    """Seconds of a step by phase, and of one that generates every answer from its first token. ``prompt``: mean, in tokens;
    ``gpu``: its name in ``torch.cuda``, or "" without one."""
    known = next((name for name in seconds.GPUS if name in gpu), "H100")
    room = args.data.max_len - round(prompt)
    longest = min(args.rollout.max_new_tokens or room, room)
    groups, samples = args.rollout.batch_size, args.rollout.n_samples_per_prompt
    lengths = seconds.answers(groups, samples, longest, seconds.MEAN_SHARE * longest)
    mean = float(lengths.mean())
    rates, cluster = _machine(shape, args, known, prompt + mean)
    training = _Training.of(args)
    ways = {"with every answer from its first token": (seconds.bare(lengths, prompt), None)}
    ways["this command"] = (_work(config.method, lengths, prompt), _drafts(config))
    said = [f"{name}: {_written(rates, cluster, training, *way)}" for name, way in reversed(ways.items())]
    devices = sum(number for _, number, _ in required_devices(args))
    assumed = (
        f"assumed: answers of {mean:,.0f} tokens on average and up to {longest:,}, prompts of {prompt:.0f}, "
        f"{seconds.KEPT:.0%} of a verified path kept, {ACCEPTED:.0%} of drafted tokens right"
    )
    lines = [f"about, on {devices} {known}, by published rates (docs/doctor.md):", *said, assumed]
    return Finding(PASS, "seconds of a step", "\n".join(lines))


@dataclass(frozen=True)
class _Training:
    """Passes over a batch before and in training, and their optimizer steps; whether groups share their prefix, and whether
    the next batch is rolled out meanwhile. A critic and a reward model count as large as the policy."""

    forwards: int
    passes: int
    updates: int
    shares: bool
    ahead: bool

    @classmethod
    def of(cls, args: SimpleNamespace) -> "_Training":
        critic, epochs = args.algo.advantage.estimator == "gae", args.train.max_epochs
        models = 1 + (critic and args.train.colocate_all)  # else the two train at once
        samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
        return cls(
            forwards=needs_old_log_probs(args) + (args.algo.kl.init_coef > 0) + critic + (not args.reward.remote_url),
            passes=epochs * models,
            updates=epochs * models * max(1, samples // args.train.batch_size),
            shares=shares_prefixes(args),
            ahead=args.train.async_enable and args.train.async_queue_size > 0,
        )


def _machine(shape: ModelShape, args: SimpleNamespace, gpu: str, length: float) -> tuple[Rates, Cluster]:
    per_engine = args.vllm.tensor_parallel_size
    ranks = n_processes(args.actor)
    rates = seconds.of_gpus(shape, gpu, per_engine, length, args.vllm.enable_sleep, ranks)
    memory = args.vllm.gpu_memory_utilization * seconds.GPUS[gpu][2] * per_engine
    limit = limits_of(args.rpo.engine_limits).get("max_num_seqs", seconds.SEQUENCES)
    return rates, Cluster(args.vllm.num_engines or 1, ranks, min(limit, seconds.sequences(shape, memory, length)))


def _work(method: Method, lengths: np.ndarray, prompt: float) -> Work:
    """The work of a step under the method's options; a method that does not override ``paths`` replays none."""
    if not method.continues:
        return seconds.bare(lengths, prompt)
    share = method.replay_share or 1.0  # 0: all, in the order of the data
    if method.scores:
        return seconds.verified(lengths, prompt, share)
    kind, value = parse_largest(getattr(method, "cut_max", "ratio:0.5"))
    return seconds.continued(lengths, prompt, share, value if kind == "ratio" else min(1.0, value / float(lengths.mean())))


def _drafts(config: RPOConfig) -> Drafts | None:
    if config.drafts.mode == "off":
        return None
    tokens = config.drafts.tokens
    return Drafts(tokens, sum(ACCEPTED**i for i in range(1, tokens + 1)), config.drafts.mode == "auto")


def _written(rates: Rates, cluster: Cluster, training: _Training, work: Work, drafts: Drafts | None) -> str:
    if not training.shares:
        work = replace(work, trained=float((work.prompt + work.prefix + work.new).sum()))
    found = seconds.phases(work, rates, cluster, training.forwards, drafts, training.passes, training.updates)
    parts = ", ".join(f"{name} {value:.1f}" for name, value in found.items() if value >= 0.05)
    beside = min(found["verify"] + found["rollout"], found["log_probs"] + found["train"]) if training.ahead else 0.0
    both = ", rollout and training side by side" if training.ahead else ""
    return f"{sum(found.values()) - beside:.0f} s ({parts}{both}), {work.new.mean():,.0f} new tokens a sample"
