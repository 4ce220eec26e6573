"""Every check of the world around a run, before an engine spends a minute starting."""

import os
from types import SimpleNamespace

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.options import SHIPPED_REWARD
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.rewards.math import unparsable
from openrlhf_rpo.rollout.questions import load_eval_questions, load_questions
from openrlhf_rpo.rollout.scoring import check_reward_source
from openrlhf_rpo.run_files import cache_url, fingerprints, latest_cache_copy
from openrlhf_rpo.types import Question
from openrlhf_rpo.upstream import UsageError, get_tokenizer

MAX_UNPARSABLE_SHARE = 0.1


def check_run(args: SimpleNamespace, config: RPOConfig) -> None:
    """Model, tokenizer, data, labels, reward source, output folder and cache. Raises UsageError or CacheError."""
    tokenizer = _load_tokenizer(args)
    questions, merged = load_questions(args, tokenizer)
    held_out = load_eval_questions(args, tokenizer)
    print(f"{len(questions):,} questions" + (f" ({merged:,} duplicates merged)" if merged else ""), flush=True)
    if args.rollout.batch_size > len(questions):
        raise UsageError(
            f"--rollout.batch_size {args.rollout.batch_size} asks for more questions than the data set has "
            f"({len(questions)}), and none comes twice in a batch: no step would run"
        )
    _check_lengths(args, questions, tokenizer, "--data.prompt_dataset")
    _check_lengths(args, held_out, tokenizer, "--eval.dataset")
    if config.reward.functions and {"math", "cosine"} & set(config.reward.functions.split(",")):
        _check_labels(questions + held_out)
    try:
        check_reward_source(config.reward, None if args.reward.remote_url == [SHIPPED_REWARD] else args.reward.remote_url)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _check_writable(args.ckpt.path, "--ckpt.path")
    _check_writable(args.ckpt.output_dir, "--ckpt.output_dir")
    _check_cache(args, questions, tokenizer)


def _load_tokenizer(args: SimpleNamespace):
    """As the trainer loads it, so that both come to the same fingerprint."""
    from transformers import AutoConfig

    path = args.actor.model_name_or_path
    if os.path.isdir(path) and not any(name.endswith((".safetensors", ".bin")) for name in os.listdir(path)):
        raise UsageError(f"--actor.model_name_or_path {path}: no weights (.safetensors or .bin) in this folder")
    try:
        AutoConfig.from_pretrained(path, trust_remote_code=True)
        return get_tokenizer(path, None, use_fast=not args.data.disable_fast_tokenizer)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--actor.model_name_or_path {path}: cannot be read: {reason}") from error


def _check_lengths(args: SimpleNamespace, questions: list[Question], tokenizer, flag: str) -> None:
    if not questions:
        return
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


def _check_labels(questions: list[Question]) -> None:
    bad = unparsable([q.label for q in questions])
    if not bad:
        return
    shown = "; ".join(f"{questions[i].label!r} ({questions[i].prompt[:40]!r})" for i in bad[:3])
    message = f"{len(bad)} of {len(questions)} labels cannot be parsed by the math reward, such as {shown}"
    if len(bad) > MAX_UNPARSABLE_SHARE * len(questions):
        raise UsageError(message + ". Check --data.label_key, or bring your own reward with --reward.remote_url")
    print(f"Warning: {message}; they can never be rewarded", flush=True)


def _check_writable(path: str, flag: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be created: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise UsageError(f"{flag} {path}: not writable")


def _check_cache(args: SimpleNamespace, questions: list[Question], tokenizer) -> None:
    """The cache belongs to this run, and is fresh unless the run resumes. A lost one comes back from the checkpoint."""
    url = cache_url(args)
    copy = latest_cache_copy(args)
    if args.ckpt.load_enable and copy and url.startswith("sqlite:///") and not os.path.exists(url[len("sqlite:///") :]):
        print(f"The cache {url} is missing; restoring the copy beside the checkpoint, {copy}", flush=True)
        PathCache.restore(copy, url)
    with PathCache.open(url, fingerprints(args, questions, tokenizer)) as cache:
        step = cache.latest_step
        if step > 0 and not args.ckpt.load_enable:
            raise UsageError(
                f"the cache {url} already holds {step} steps of a run: add --ckpt.load_enable to resume it, "
                f"or use another --ckpt.path"
            )
