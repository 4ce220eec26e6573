"""What a step of the given command takes on GPUs, as the doctor says it, by the model in ``seconds``.

No command says how long answers are and how much of them is reused: that is assumed, and said.
"""

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
from openrlhf_rpo.training.passes import needs_old_log_probs
from openrlhf_rpo.upstream import n_processes

ACCEPTED = 0.65
"""The chance of a drafted token whose predecessors are accepted."""


def a_step(shape: ModelShape, args: SimpleNamespace, config: RPOConfig, prompt: float, gpu: str) -> Finding:
    """Seconds of a step by phase, and of one that generates every answer from its first token. ``prompt``: mean, in tokens;
    ``gpu``: a name that ``torch.cuda`` gives, or "" without any."""
    known = next((name for name in seconds.GPUS if name in gpu), "H100")
    longest = args.rollout.max_new_tokens or args.data.max_len - round(prompt)
    groups, samples = args.rollout.batch_size, args.rollout.n_samples_per_prompt
    lengths = seconds.answers(groups, samples, longest, seconds.MEAN_SHARE * longest)
    mean = float(lengths.mean())
    rates, cluster = _machine(shape, args, known, prompt + mean)
    forwards = needs_old_log_probs(args) + (args.algo.kl.init_coef > 0)
    ways = {"with every answer from its first token": (seconds.bare(lengths, prompt), None)}
    ways["this command"] = (_work(config.method, lengths, prompt), _drafts(config))
    ahead = args.train.async_enable and args.train.async_queue_size > 0
    said = [f"{name}: {_written(rates, cluster, forwards, ahead, *way)}" for name, way in reversed(ways.items())]
    devices = sum(number for _, number, _ in required_devices(args))
    assumed = (
        f"assumed: answers of {mean:,.0f} tokens on average and up to {longest:,}, prompts of {prompt:.0f}, "
        f"{seconds.KEPT:.0%} of a verified path kept, {ACCEPTED:.0%} of drafted tokens right"
    )
    lines = [f"about, on {devices} {known}, by published rates (docs/doctor.md):", *said, assumed]
    return Finding(PASS, "seconds of a step", "\n".join(lines))


def _machine(shape: ModelShape, args: SimpleNamespace, gpu: str, length: float) -> tuple[Rates, Cluster]:
    per_engine = args.vllm.tensor_parallel_size
    ranks = n_processes(args.actor)
    rates = seconds.of_gpus(shape, gpu, per_engine, length, args.vllm.enable_sleep, ranks)
    memory = args.vllm.gpu_memory_utilization * seconds.GPUS[gpu][2] * per_engine
    limit = limits_of(args.rpo.engine_limits).get("max_num_seqs", seconds.SEQUENCES)
    return rates, Cluster(args.vllm.num_engines or 1, ranks, min(limit, seconds.sequences(shape, memory, length)))


def _work(method: Method, lengths: np.ndarray, prompt: float) -> Work:
    """As the method's options say; a method that replays no paths as the shipped ones do counts as one that replays none."""
    if type(method).paths is Method.paths:
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


def _written(rates: Rates, cluster: Cluster, forwards: int, ahead: bool, work: Work, drafts: Drafts | None) -> str:
    """``ahead``: the next batch is rolled out while a step trains."""
    found = seconds.phases(work, rates, cluster, forwards, drafts)
    parts = ", ".join(f"{name} {value:.1f}" for name, value in found.items() if value >= 0.05)
    beside = min(found["verify"] + found["rollout"], found["log_probs"] + found["train"]) if ahead else 0.0
    both = ", rollout and training side by side" if ahead else ""
    return f"{sum(found.values()) - beside:.0f} s ({parts}{both}), {work.new.mean():,.0f} new tokens a sample"
