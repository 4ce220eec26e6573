"""The memory that a run takes on each device and disk, in bytes, as sums that the doctor prints (docs/doctor.md).

These are estimates: fragmentation, communication buffers and CUDA itself add about 10 %. Weights, gradients and
optimizer follow ZeRO (arXiv 1910.02054, section 3). Activations take 34 bytes per token, hidden unit and layer in 16 bits
with flash attention (arXiv 2205.05198, equation 2 without the attention map).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from openrlhf_rpo.training.passes import LOGITS_AT_ONCE, works_in_chunks
from openrlhf_rpo.upstream import n_processes

GIB = 1024**3
ACTIVATION_BYTES = 34
_GROUPS = {"reference": "ref", "reward model": "reward", "critic": "critic"}  # -> the prefix of its options


@dataclass(frozen=True)
class ModelShape:
    """The model sizes that the sums use; ``hidden`` and ``head_dim`` in units, ``vocabulary`` in tokens.

    ``adapter``: the parameters of a LoRA adapter, not in ``parameters``; if any, only these are trained.
    """

    parameters: int
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    adapter: int = 0

    @property
    def trained(self) -> int:
        return self.adapter or self.parameters


@dataclass(frozen=True)
class Term:
    """One summand: its name, how it is computed, and its bytes."""

    name: str
    formula: str
    bytes: int


def shape_of(config: object, parameters: int, adapter: int = 0) -> ModelShape:
    """From a transformers text configuration."""
    heads = config.num_attention_heads  # type: ignore[attr-defined]
    return ModelShape(
        parameters,
        config.num_hidden_layers,  # type: ignore[attr-defined]
        config.hidden_size,  # type: ignore[attr-defined]
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,  # type: ignore[attr-defined]
        config.vocab_size,  # type: ignore[attr-defined]
        adapter,
    )


def training_terms(shape: ModelShape, args: SimpleNamespace) -> list[Term]:
    """A policy process: weights, gradients, optimizer; activations and logits of one micro-batch of the longest paths."""
    n, width = shape.trained, weight_bytes(args)
    ranks = n_processes(args.actor)
    stage = args.ds.zero_stage

    def share(from_stage: int) -> int:
        return ranks if stage >= from_stage else 1

    terms = [
        _divided("weights", shape.parameters + shape.adapter, width, share(3)),
        _divided("gradients", n, width, share(2)),
        # A float32 copy (none of float32 weights at stage 0), first and second moment.
        _divided("optimizer", n, 8 if width == 4 and stage == 0 else 12, share(1)),
    ]
    if args.ds.adam_offload:
        terms[-1] = Term("optimizer", "in host memory (--ds.adam_offload)", 0)
    tokens = micro_batch_tokens(args)
    scale = ACTIVATION_BYTES * width // 2
    if args.actor.gradient_checkpointing_enable:
        kept = tokens * shape.hidden * (shape.layers * width + scale)
        formula = f"{tokens:,} tokens x {shape.hidden:,} x ({shape.layers} layers x {width} + one layer x {scale})"
    else:
        kept = tokens * shape.hidden * shape.layers * scale
        formula = f"{tokens:,} tokens x {shape.hidden:,} x {shape.layers} layers x {scale}"
    terms.append(Term("activations", formula, kept))
    if works_in_chunks(args):
        return [*terms, chunks_term(shape, tokens, width)]
    return [*terms, logits_term(shape, tokens, args.actor.entropy_coef is not None)]


def beside_terms(shape: ModelShape, others: Mapping[str, int], args: SimpleNamespace) -> list[Term]:
    """What a policy process's device holds throughout, beside the policy.

    ``others``: parameters of the "reference", "reward model" and "critic" that share it. With ``--ds.enable_sleep`` a
    critic's gradients and optimizer are in main memory while others work.
    """
    width, stage, terms = weight_bytes(args), args.ds.zero_stage, []
    for name, parameters in others.items():
        group = getattr(args, _GROUPS[name])
        ranks, states = n_processes(group), name == "critic" and not args.ds.enable_sleep
        if stage == 3 and getattr(group, "offload", False):
            continue
        terms.append(_divided(f"weights of the {name}", parameters, width, ranks if stage == 3 else 1))
        if states:
            terms.append(_divided(f"gradients of the {name}", parameters, width, ranks if stage >= 2 else 1))
            terms.append(_divided(f"optimizer of the {name}", parameters, 12, ranks if stage >= 1 else 1))
    if args.train.enable_ema:
        terms.append(_divided("moving average", shape.parameters, 4, 1))
    return terms


def while_generating(terms: Iterable[Term], args: SimpleNamespace) -> int:
    """Bytes of a policy process and those beside it (``terms``) while the engines on its device are awake."""
    away = {"activations", "logits"} | ({"gradients", "optimizer"} if args.ds.enable_sleep else set())
    return total(term for term in terms if term.name not in away)


def logits_term(shape: ModelShape, tokens: int, with_entropy: bool) -> Term:
    """All logits of ``tokens`` tokens at once, as in OpenRLHF 0.11.2 with torch's own kernels."""
    each = 28 if with_entropy else 16
    return Term("logits", f"{tokens:,} tokens x {shape.vocabulary:,} x {each}", tokens * shape.vocabulary * each)


def chunks_term(shape: ModelShape, tokens: int, width: int) -> Term:
    """A chunk of the logits of ``tokens`` tokens, and the output layer's gradient in float32."""
    at_once = min(tokens, max(1, LOGITS_AT_ONCE // shape.vocabulary))
    chunk, update = 8 * at_once, (at_once + shape.hidden) * width
    formula = f"{at_once:,} tokens x 8" if chunk > update else f"({at_once:,} tokens + {shape.hidden:,}) x {width}"
    size = (max(chunk, update) + 4 * shape.hidden) * shape.vocabulary
    return Term("logits", f"({formula} + {shape.hidden:,} x 4) x {shape.vocabulary:,}", size)


def engine_terms(shape: ModelShape, args: SimpleNamespace) -> list[Term]:
    """An engine device: its share of the weights, and the keys and values of one path of the maximum length."""
    parts, width = args.vllm.tensor_parallel_size, weight_bytes(args)
    own = replace(shape, kv_heads=max(1, shape.kv_heads // parts))  # fewer heads than GPUs are copied
    return [
        _divided("weights", shape.parameters, width, parts),
        Term(
            "KV cache of one longest path",
            f"{args.data.max_len:,} tokens x 2 x {own.layers} layers x {own.kv_heads} heads x {own.head_dim} x {width}",
            args.data.max_len * kv_bytes_per_token(own, width),
        ),
    ]


def kv_bytes_per_token(shape: ModelShape, width: int) -> int:
    """Keys and values of one token in all layers, ``width`` bytes each."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * width


def weight_bytes(args: SimpleNamespace) -> int:
    """Bytes of one weight: 4 in float32, a CPU's default."""
    return 4 if args.ds.param_dtype == "fp32" else 2


def micro_batch_tokens(args: SimpleNamespace) -> int:
    """Tokens of the largest micro-batch, with every path at its longest and no shared prefix; per process of a ring."""
    if args.train.dynamic_batch_enable:
        tokens = max(args.train.max_tokens_per_gpu, args.data.max_len)
    else:
        tokens = args.train.micro_batch_size * args.data.max_len
    return tokens // args.ds.ring_attn_size


def checkpoint_bytes(shape: ModelShape, critic: int, args: SimpleNamespace) -> int:
    """A checkpoint: weights (frozen ones too) and float32 optimizer states of the policy and of a critic of ``critic``
    parameters, plus the policy's float32 moving average (--train.enable_ema)."""
    average = shape.parameters * 4 if args.train.enable_ema else 0
    return (shape.parameters + shape.adapter + critic) * weight_bytes(args) + (shape.trained + critic) * 12 + average


def total(terms: Iterable[Term]) -> int:
    return sum(term.bytes for term in terms)


def written(terms: Sequence[Term]) -> str:
    """The terms, one a line, and their sum."""
    lines = [f"{term.name}: {term.formula} = {gib(term.bytes)}" for term in terms]
    return "\n".join([*lines, f"together {gib(total(terms))}"])


def gib(n: int) -> str:
    """Bytes as GiB, or as MiB below 0.1 GiB."""
    return f"{n / GIB:.1f} GiB" if n >= GIB // 10 else f"{n / 1024**2:.1f} MiB"


def _divided(name: str, parameters: int, width: int, ranks: int) -> Term:
    formula = f"{parameters:,} x {width}" + (f" / {ranks}" if ranks > 1 else "")
    return Term(name, formula, parameters * width // ranks)
