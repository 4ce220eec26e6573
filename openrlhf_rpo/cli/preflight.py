"""Every check of the world around a run, before an engine spends a minute starting."""

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.model_code import refuse_model_code
from openrlhf_rpo.cli.options import SHIPPED_REWARD
from openrlhf_rpo.cli.resume_checks import check_cache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.exchange.errors import ExchangeError
from openrlhf_rpo.exchange.sources import check_source, import_source
from openrlhf_rpo.rewards.math import unparsable
from openrlhf_rpo.rollout.questions import load_eval_questions, load_questions
from openrlhf_rpo.rollout.scoring import check_reward_source
from openrlhf_rpo.run_files import cache_url, tokenizer_fingerprint
from openrlhf_rpo.training.passes import cannot_share
from openrlhf_rpo.types import Question
from openrlhf_rpo.upstream import UsageError, get_tokenizer

MAX_UNPARSABLE_SHARE = 0.1


def check_run(args: SimpleNamespace, config: RPOConfig) -> None:
    """Model, tokenizer, data, labels, reward source, output folder, cache and import. Raises UsageError or CacheError."""
    tokenizer = load_tokenizer(args)
    questions, held_out, said, tight = load_data(args, tokenizer)
    print(said, flush=True)
    if tight:
        print(f"Warning: {tight}", flush=True)
    if args.eval.dataset and args.eval.steps < 0:
        print("Warning: --eval.dataset is never evaluated without --eval.steps N, every N steps", flush=True)
    if config.shared_prefix == "auto" and (reason := cannot_share(args)):
        print(f"Shared prefix: off, every sample runs whole: {reason}", flush=True)
    if warning := check_labels(config, questions + held_out):
        print(f"Warning: {warning}", flush=True)
    check_reward(args, config)
    _check_writable(args.ckpt.path, "--ckpt.path")
    _check_writable(args.ckpt.output_dir, "--ckpt.output_dir")
    check_cache(args, questions, tokenizer)
    if said := check_import(args, questions, tokenizer):
        print(said, flush=True)


class RunData(NamedTuple):
    """The questions of a run, a line that counts them, and a warning when the longest prompt leaves little room."""

    questions: list[Question]
    held_out: list[Question]
    said: str
    tight: str | None


def load_data(args: SimpleNamespace, tokenizer: Any) -> RunData:
    """Training and held-out questions, each with room for an answer. Raises UsageError."""
    questions, merged = load_questions(args, tokenizer)
    held_out = load_eval_questions(args, tokenizer)
    if args.rollout.batch_size > len(questions):
        raise UsageError(
            f"--rollout.batch_size {args.rollout.batch_size} asks for more questions than the data set has "
            f"({len(questions)}), and none comes twice in a batch: no step would run"
        )
    longest = max(
        _check_lengths(args, questions, tokenizer, "--data.prompt_dataset"),
        _check_lengths(args, held_out, tokenizer, "--eval.dataset"),
    )
    said = f"{len(questions):,} questions" + (f" ({merged:,} duplicates merged)" if merged else "")
    return RunData(questions, held_out, said, _little_room(args, longest))


def check_questions(args: SimpleNamespace, config: RPOConfig, questions: list[Question], tokenizer: Any) -> str | None:
    """Of an evaluation: ``check_labels``, and room for an answer to each. Raises UsageError."""
    _check_lengths(args, questions, tokenizer, "--eval.dataset")
    return check_labels(config, questions)


def check_reward(args: SimpleNamespace, config: RPOConfig) -> None:
    """The reward source can be loaded or is well-formed. Raises UsageError."""
    try:
        check_reward_source(config.reward, None if args.reward.remote_url == [SHIPPED_REWARD] else args.reward.remote_url)
    except ValueError as error:
        raise UsageError(str(error)) from error


def load_tokenizer(args: SimpleNamespace) -> Any:
    """As the trainer loads it, so that both come to the same fingerprint. Raises UsageError."""
    from transformers import AutoConfig

    path = args.actor.model_name_or_path
    if os.path.isdir(path) and not any(name.endswith((".safetensors", ".bin")) for name in os.listdir(path)):
        raise UsageError(f"--actor.model_name_or_path {path}: no weights (.safetensors or .bin) in this folder")
    try:
        refuse_model_code(args)
        AutoConfig.from_pretrained(path, trust_remote_code=args.rpo.trust_remote_code)
        return get_tokenizer(path, None, use_fast=not args.data.disable_fast_tokenizer)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--actor.model_name_or_path {path}: cannot be read: {reason}") from error


def _check_lengths(args: SimpleNamespace, questions: list[Question], tokenizer, flag: str) -> int:
    """Tokens of the longest prompt, 0 without questions. Raises UsageError."""
    if not questions:
        return 0
    lengths = [len(ids) for ids in tokenizer([q.prompt for q in questions], add_special_tokens=False)["input_ids"]]
    if not all(lengths):
        raise UsageError(
            f"{flag}: {lengths.count(0)} of {len(lengths)} prompts have no tokens: an empty prompt, or the tokenizer of "
            f"{args.actor.model_name_or_path} is not complete"
        )
    too_long = sum(length >= args.data.max_len for length in lengths)
    if too_long:
        raise UsageError(
            f"{flag}: {too_long} of {len(lengths)} prompts leave no room to answer: the longest has {max(lengths)} tokens, "
            f"--data.max_len is {args.data.max_len}"
        )
    return max(lengths)


def _little_room(args: SimpleNamespace, longest: int) -> str | None:
    """What to say when the longest prompt leaves less than a quarter of ``max_len``, unless no path needs that much."""
    room = args.data.max_len - longest
    if 4 * room >= args.data.max_len or (args.rollout.max_new_tokens and room >= args.rollout.max_new_tokens):
        return None
    return (
        f"the longest prompt has {longest} tokens and leaves {room} of --data.max_len {args.data.max_len} for its path: "
        "a path that is cut short is seldom rewarded"
    )


def check_labels(config: RPOConfig, questions: list[Question]) -> str | None:
    """A warning about labels that the math reward cannot parse. Raises UsageError when they are many."""
    if not config.reward.functions or not {"math", "cosine"} & set(config.reward.functions.split(",")):
        return None
    bad = unparsable([q.label for q in questions])
    if not bad:
        return None
    shown = "; ".join(f"{questions[i].label!r} ({questions[i].prompt[:40]!r})" for i in bad[:3])
    message = f"{len(bad)} of {len(questions)} labels cannot be parsed by the math reward, such as {shown}"
    if len(bad) > MAX_UNPARSABLE_SHARE * len(questions):
        raise UsageError(message + ". Check --data.label_key, or bring your own reward with --reward.remote_url")
    return f"{message}; they can never be rewarded"


def _check_writable(path: str, flag: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be created: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise UsageError(f"{flag} {path}: not writable")


def check_import(args: SimpleNamespace, questions: list[Question], tokenizer: Any) -> str | None:
    """What ``--rpo.init.source`` brings for these questions, in a line; None for a run that imports nothing (any more).

    Raises UsageError when it cannot serve. A run whose initial cache is complete needs its source no more.
    """
    if args.rpo.init.mode != "import":
        return None
    if not PathCache.is_missing(cache_url(args)):
        with PathCache.open_to_read(cache_url(args)) as cache:
            if cache.initialised:
                return None
    try:
        return check_source(import_source(args), questions, tokenizer_fingerprint(tokenizer))
    except ExchangeError as error:
        raise UsageError(f"--rpo.init.source {error}") from error
