"""Every check of a run's surroundings (model, data, reward, folders, cache) before an engine spends a minute starting."""

import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import AsyncOptions, DraftOptions, DynamicOptions, RewardOptions, RPOConfig
from openrlhf_rpo.errors import ExchangeError, UsageError, reason_of
from openrlhf_rpo.exchange.sources import check_source, import_source
from openrlhf_rpo.launch.model_code import refuse_model_code
from openrlhf_rpo.launch.model_files import check_models
from openrlhf_rpo.launch.options import longest_answer, sums_in_float32
from openrlhf_rpo.launch.resume import check_cache
from openrlhf_rpo.rewards.math import unparsable
from openrlhf_rpo.rollout.imported_paths import not_verifiable
from openrlhf_rpo.rollout.questions import load_eval_questions, load_questions
from openrlhf_rpo.rollout.scoring import check_reward_source
from openrlhf_rpo.run.checkpoints import keeps_best
from openrlhf_rpo.run.files import cache_url, existing
from openrlhf_rpo.training.passes import cannot_share
from openrlhf_rpo.types import Question
from openrlhf_rpo.upstream import get_tokenizer

MAX_UNPARSABLE_SHARE = 0.1


def check_run(args: SimpleNamespace, config: RPOConfig) -> None:
    """Check model, tokenizer, data, labels, reward source, output folders, cache and import.

    Raises UsageError or CacheError.
    """
    tokenizer = load_tokenizer(args)
    questions, held_out, said, warnings = load_data(args, tokenizer)
    print(said, flush=True)
    for warning in (*warnings, *option_warnings(args, config)):
        print(f"Warning: {warning}", flush=True)
    if config.shared_prefix == "auto" and (reason := cannot_share(args)):
        print(f"Shared prefix: off, every sample runs whole: {reason}", flush=True)
    elif config.shared_prefix != "off" and (torn := torn_groups(args)):
        print(f"Warning: {torn[0]}: {torn[1]}", flush=True)
    if warning := check_labels(config, questions + held_out):
        print(f"Warning: {warning}", flush=True)
    check_reward_source(config.reward, args.reward.remote_url)
    if args.logger.wandb.key:
        check_wandb()
    for flag, path in written_folders(args).items():
        check_folder(path, flag)
        _make(path, flag)
    new = not args.ckpt.load_enable and PathCache.is_missing(cache_url(args))
    source = check_import(args, questions, tokenizer) if new else None  # first: a refused source leaves no empty cache
    check_cache(args, questions, tokenizer)
    if warning := not_verifiable(cache_url(args), config):
        print(f"Warning: {warning}", flush=True)
    if source := source or check_import(args, questions, tokenizer):
        print(source, flush=True)


def load_data(args: SimpleNamespace, tokenizer: Any) -> tuple[list[Question], list[Question], str, list[str]]:
    """Training and held-out questions, a line with their number, and warnings: contradictions, a frequent label, little
    room for a path.

    Raises UsageError when there are too few questions, or a prompt is empty or leaves no room for an answer.
    """
    questions, merged = load_questions(args, tokenizer)
    held_out, repeated = load_eval_questions(args, tokenizer)
    if args.rollout.batch_size > len(questions):
        raise UsageError(
            f"--rollout.batch_size {args.rollout.batch_size} asks for more questions than the data set has "
            f"({len(questions)}), and a batch has no question twice: no step would run"
        )
    longest = max(
        _check_lengths(args, questions, "--data.prompt_dataset"),
        _check_lengths(args, held_out, "--eval.dataset"),
    )
    _check_best(args, held_out)
    said = f"{len(questions):,} questions" + (f" ({merged:,} duplicates merged)" if merged else "")
    warnings = [_contradictions(questions, "--data.prompt_dataset"), _contradictions(held_out, "--eval.dataset")]
    warnings += [_frequent_label(questions), _little_room(args, longest), _too_long(args, questions)]
    if repeated:
        warnings.append(
            f"--eval.dataset: {repeated:,} rows repeat a question, which is asked once: for several answers to each, use "
            "--eval.n_samples_per_prompt"
        )
    return questions, held_out, said, [warning for warning in warnings if warning]


def _check_best(args: SimpleNamespace, held_out: list[Question]) -> None:
    """Raises UsageError if no evaluation has --ckpt.best_metric_key: upstream would never keep a best checkpoint."""
    key, found = args.ckpt.best_metric_key, {f"eval_{question.datasource}_" for question in held_out}
    common = {"response_length_mean", "truncated_rate"}
    figures = {f"pass{n}" for n in (1, args.eval.n_samples_per_prompt)} | common
    known = {start + figure for start in found for figure in figures} | {f"eval_{figure}" for figure in common}
    if found and key not in ("", "none", None) and key not in known:
        names = ", ".join(sorted(f"{start}pass1" for start in found))
        raise UsageError(f"--ckpt.best_metric_key {key}: an evaluation has no such figure; there is {names}")


def option_warnings(args: SimpleNamespace, config: RPOConfig) -> list[str]:
    """A sentence for each option that changes nothing, and one if no checkpoint will be written."""
    ignored = [name for name in ("ref", "reward") if getattr(args, name).offload and args.ds.zero_stage < 3]
    found = [f"--{name}.offload does nothing below --ds.zero_stage 3, which alone moves frozen weights" for name in ignored]
    n = args.eval.n_samples_per_prompt
    if args.eval.dataset and args.eval.steps < 0:
        found.append("--eval.dataset is never evaluated without --eval.steps N (every N steps)")
    elif args.eval.dataset and args.eval.temperature == 0 and n > 1:
        found.append(
            f"--eval.temperature 0 is greedy, so all {n} answers to a question would be the same: "
            "add --eval.n_samples_per_prompt 1"
        )
    if not (args.ckpt.disable_ds or args.ckpt.save_steps > 0 or keeps_best(args)):
        found.append("no checkpoint will be written; a run that is killed begins again at step 0: add --ckpt.save_steps N")
    if sums_in_float32(args) and args.ds.zero_stage == 2:
        found.append(f"--ds.grad_accum_dtype {args.ds.grad_accum_dtype} does nothing at --ds.zero_stage 2: use 3")
    if config.shaping.alpha and config.shaping.scope == "rewarded" and "format" in (config.reward.functions or ""):
        found.append(
            "--rpo.shaping.alpha lowers the rewards of right answers alone, so a wrong one in the right format may get more "
            "than a long right one: use the format reward without it"
        )
    if config.shaping.alpha and not args.reward.remote_url:
        found.append(
            "--rpo.shaping.alpha is for rewards from 0 to 1: a reward model's are clipped to --rpo.shaping.min and max"
        )
    horizon, longest = config.reward.cosine_max_len, longest_answer(args)
    if "cosine" in (config.reward.functions or "") and longest > horizon:
        found.append(
            f"answers of more than --rpo.reward.cosine_max_len {horizon} tokens all get one reward; they may have {longest}"
        )
    return found + _unused(args, config)


def _unused(args: SimpleNamespace, config: RPOConfig) -> list[str]:
    """A sentence for each option that is given for something that the run does not do."""
    cosine = "cosine" in (config.reward.functions or "")
    needed = {  # whether it is so, and what is missing
        "--rpo.async.max_age": (config.async_ != AsyncOptions() and not args.train.async_enable, "--train.async_enable"),
        "--rpo.dynamic.max_batches": (
            config.dynamic != DynamicOptions() and not args.algo.dynamic_filtering_enable,
            "--algo.dynamic_filtering_enable",
        ),
        "--rpo.drafts.tokens": (config.drafts != DraftOptions() and config.drafts.mode == "off", "--rpo.drafts on or auto"),
        "--rpo.reward.cosine_max_len": (
            config.reward.cosine_max_len != RewardOptions().cosine_max_len and not cosine,
            "--rpo.reward.functions cosine",
        ),
        f"--rpo.init.mode {config.init.mode}": (
            config.init.mode != "progressive" and not config.method.continues and config.drafts.mode == "off",
            "a method that continues stored paths, or --rpo.drafts",
        ),
    }
    return [f"{option} does nothing without {what}" for option, (idle, what) in needed.items() if idle]


def torn_groups(args: SimpleNamespace) -> tuple[str, str] | None:
    """Why groups do not share their prefixes in training although their model can, and a remedy."""
    group, micro = args.rollout.n_samples_per_prompt, args.train.micro_batch_size
    if not micro % group or args.train.dynamic_batch_enable:
        return None
    return (
        f"a micro-batch of {micro} samples splits groups of {group}, but a prefix is shared only within a micro-batch",
        f"--train.micro_batch_size {group}, or a multiple, where the memory allows it",
    )


def check_questions(args: SimpleNamespace, config: RPOConfig, questions: list[Question], repeated: int) -> list[str]:
    """For an evaluation: warnings about its questions, after checking that each prompt leaves room for an answer."""
    _check_lengths(args, questions, "--eval.dataset")
    again = f"{repeated:,} rows repeat a question, which is asked once: for several answers to each, use --samples"
    warnings = (check_labels(config, questions), _contradictions(questions, "the data"), again if repeated else None)
    return [warning for warning in warnings if warning]


def check_wandb() -> str:
    """W&B's mode. Raises UsageError without a login: OpenRLHF would take the option's word as the key."""
    import wandb  # takes a second

    mode = wandb.setup().settings.mode
    if mode not in ("offline", "dryrun", "disabled") and not wandb.api.api_key:
        raise UsageError(
            "--logger.wandb.key turns W&B on, and there is no login: set WANDB_API_KEY, run `wandb login`, or keep "
            "its files here with WANDB_MODE=offline"
        )
    return f"mode {mode}"


def load_tokenizer(args: SimpleNamespace) -> Any:
    """The tokenizer as the trainer loads it, so that both have the same fingerprint. Raises UsageError."""
    from transformers import AutoConfig

    path = args.actor.model_name_or_path
    check_models(args)
    try:
        refuse_model_code(args)
        config = AutoConfig.from_pretrained(path, trust_remote_code=args.rpo.trust_remote_code)
        tokenizer = get_tokenizer(path, None, use_fast=not args.data.disable_fast_tokenizer)
    except UsageError:
        raise
    except Exception as error:  # transformers raises whatever a wrong value leads to
        remedy = "" if os.path.isdir(path) else " There is no such folder here, so it was looked up on the hub"
        raise UsageError(f"--actor.model_name_or_path {path}: cannot be read: {reason_of(error)}{remedy}") from error
    if hasattr(tokenizer, "tokenizer"):  # a processor of texts and images
        if args.rpo.enable:
            raise UsageError(
                f"--actor.model_name_or_path {path} also reads images: RPO is for text models (--rpo.enable false)"
            )
        tokenizer = tokenizer.tokenizer
    _check_vocabulary(path, tokenizer, config)
    _check_context(args, config)
    _check_heads(args, config)
    return tokenizer


def _check_context(args: SimpleNamespace, config: Any) -> None:
    """Raises UsageError when a path may be longer than the model's context, which vLLM refuses as it starts.

    Where the configuration stretches its positions (RoPE scaling) or names another limit, this is left to vLLM.
    """
    text = config.get_text_config()
    stretched = "factor" in str(getattr(text, "rope_parameters", None)) or hasattr(config, "model_max_length")
    longest = getattr(text, "max_position_embeddings", None)
    if longest and not stretched and (args.data.max_len or 0) > longest:
        raise UsageError(
            f"--data.max_len {args.data.max_len} is more than the {longest:,} tokens of the model's context "
            f"({args.actor.model_name_or_path}: max_position_embeddings in config.json)"
        )


def _check_heads(args: SimpleNamespace, config: Any) -> None:
    """Raises UsageError when an engine's GPUs cannot share the model's heads, which vLLM refuses as it starts."""
    heads, parts = getattr(config.get_text_config(), "num_attention_heads", None), args.vllm.tensor_parallel_size
    if isinstance(heads, int) and heads % parts:
        raise UsageError(
            f"--vllm.tensor_parallel_size {parts} must divide the {heads} heads of the model "
            f"({args.actor.model_name_or_path}: num_attention_heads in config.json)"
        )


def _check_vocabulary(path: str, tokenizer: Any, config: Any) -> None:
    """Raises UsageError when a token has no row in the embedding.

    Some tokenizers add more tokens than the model has (Gemma 3, 1B): only those usable in a prompt or answer count.
    """
    template, used = str(tokenizer.chat_template), {tokenizer.bos_token_id, tokenizer.eos_token_id}
    added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
    known = [i for i in tokenizer.get_vocab().values() if i not in added or i in used or added[i] in template]
    largest = max((i for i in known if i != tokenizer.pad_token_id), default=-1)  # OpenRLHF adds a padding token
    rows = config.get_text_config().vocab_size
    if largest >= rows:
        raise UsageError(
            f"--actor.model_name_or_path {path}: its tokenizer has the token id {largest}, but the model only {rows} tokens "
            "(vocab_size in config.json): the tokenizer is of another model"
        )


def _check_lengths(args: SimpleNamespace, questions: list[Question], flag: str) -> int:
    """Tokens of the longest prompt, 0 without questions. Raises UsageError for empty and too long prompts."""
    if not questions:
        return 0
    lengths = [len(q.prompt_ids) for q in questions]
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


def _contradictions(questions: list[Question], flag: str) -> str | None:
    """A warning if a question has several labels."""
    first: dict[str, str] = {}
    others = [q for q in questions if first.setdefault(q.prompt, q.label) != q.label]
    if not others:
        return None
    q = others[0]
    return (
        f"{flag}: {len(others)} questions are there again with another label, such as {q.prompt[:60]!r}: "
        f"{first[q.prompt][:40]!r} and {q.label[:40]!r}. At least one is wrong; `openrlhf-rpo data` keeps the first"
    )


def _frequent_label(questions: list[Question]) -> str | None:
    """A warning if more than a third of the questions, 30 at least, have the same label."""
    label, count = Counter(q.label for q in questions).most_common(1)[0]
    if not label or len(questions) < 30 or 3 * count <= len(questions):
        return None
    return (
        f"--data.prompt_dataset: {count} of {len(questions)} questions have the label {label[:40]!r}: a policy can learn to "
        "answer just that, whatever it is asked. Compare the accuracy that it reaches with this share"
    )


def _too_long(args: SimpleNamespace, questions: list[Question]) -> str | None:
    """A warning if no answer can be as long as ``max_new_tokens``."""
    room = args.data.max_len - min(len(q.prompt_ids) for q in questions)
    if (args.rollout.max_new_tokens or 0) <= room:
        return None
    return (
        f"--rollout.max_new_tokens {args.rollout.max_new_tokens} has no effect: --data.max_len {args.data.max_len}, for "
        f"prompt and answer together, leaves at most {room} tokens for an answer"
    )


def _little_room(args: SimpleNamespace, longest: int) -> str | None:
    """A warning if the longest prompt leaves less than a quarter of ``max_len``, and less than ``max_new_tokens``."""
    room = args.data.max_len - longest
    if 4 * room >= args.data.max_len or (args.rollout.max_new_tokens and room >= args.rollout.max_new_tokens):
        return None
    return (
        f"the longest prompt has {longest} tokens and leaves {room} of --data.max_len {args.data.max_len} for its path: "
        "a truncated path is seldom rewarded. Raise --data.max_len, or leave out the longest questions"
    )


def check_labels(config: RPOConfig, questions: list[Question]) -> str | None:
    """A warning about labels that the math reward cannot parse. Raises UsageError for more than a tenth."""
    if not config.reward.functions or not {"math", "cosine"} & {name.strip() for name in config.reward.functions.split(",")}:
        return None
    bad = unparsable([q.label for q in questions])
    if not bad:
        return None
    shown = "; ".join(f"{questions[i].label[:40]!r} ({questions[i].prompt[:40]!r})" for i in bad[:3])
    message = f"{len(bad)} of {len(questions)} labels cannot be parsed by the math reward, such as {shown}"
    if len(bad) > MAX_UNPARSABLE_SHARE * len(questions):
        raise UsageError(message + ". Check --data.label_key, or bring your own reward with --reward.remote_url")
    return f"{message}; only the same text in the box is rewarded"


def written_folders(args: SimpleNamespace) -> dict[str, str]:
    """Option -> the folder that the run writes to."""
    written = {"--ckpt.path": args.ckpt.path, "--ckpt.output_dir": args.ckpt.output_dir}
    return written | ({"--logger.tensorboard_dir": folder} if (folder := args.logger.tensorboard_dir) else {})


def check_folder(path: str, flag: str) -> None:
    """Raises UsageError for a path that is no folder, or cannot be made or written. Makes nothing."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{flag} {path}: it is a file; expected a folder, which the run makes if it is missing")
    there = existing(path)
    if not there.is_dir():
        raise UsageError(f"{flag} {path}: cannot be created: {there} is a file")
    if not os.access(there, os.W_OK):
        raise UsageError(f"{flag} {path}: {'not writable' if os.path.exists(path) else f'{there} is not writable'}")


def _make(path: str, flag: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be created: {error.strerror}") from error


def check_import(args: SimpleNamespace, questions: list[Question], tokenizer: Any) -> str | None:
    """One line on what ``--rpo.init.source`` has for these questions; None if nothing will be imported.

    A run whose initial cache is complete no longer reads its source. Raises UsageError for a source that cannot be used.
    """
    if args.rpo.init.mode != "import":
        return None
    if not PathCache.is_missing(cache_url(args)):
        with PathCache.open_to_read(cache_url(args)) as cache:
            if cache.initialised:
                return None
    try:
        return check_source(import_source(args), questions, tokenizer)
    except ExchangeError as error:
        raise UsageError(f"--rpo.init.source {error}") from error
