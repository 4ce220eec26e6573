"""Checks of what a training command will read: model, template, data, reward, disk, cache. Nothing is written."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.cache.errors import CacheOlder
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import UsageError, UserError
from openrlhf_rpo.launch.cluster import required_devices
from openrlhf_rpo.launch.doctor import memory
from openrlhf_rpo.launch.doctor.findings import FAIL, PASS, WARN, Finding, attempt, listed
from openrlhf_rpo.launch.doctor.machine import device_memory, device_name, disk, host_memory
from openrlhf_rpo.launch.doctor.plan import a_step
from openrlhf_rpo.launch.doctor.storage import by_disk, stored
from openrlhf_rpo.launch.former import translated
from openrlhf_rpo.launch.preflight import (
    check_folder,
    check_import,
    check_labels,
    check_wandb,
    load_data,
    load_tokenizer,
    option_warnings,
    torn_groups,
    written_folders,
)
from openrlhf_rpo.launch.resume import check_history, check_options, check_steps, copy_beside, refuse_complete
from openrlhf_rpo.rollout.imported_paths import not_verifiable
from openrlhf_rpo.rollout.reward_call import RewardRequest
from openrlhf_rpo.rollout.reward_pool import RewardLoadError
from openrlhf_rpo.rollout.scoring import RewardFailures, check_reward_source, make_scorer
from openrlhf_rpo.run.checkpoints import Checkpoints
from openrlhf_rpo.run.files import cache_name, cache_url, fingerprints
from openrlhf_rpo.run.steering import steering_options
from openrlhf_rpo.training.passes import cannot_share
from openrlhf_rpo.types import Question

_EXAMPLES, _SHOWN = 3, 400


def examine(args: SimpleNamespace, config: RPOConfig, device: str) -> Iterator[Finding]:
    """Every check of what the run reads, except those that need something that failed."""
    try:
        tokenizer = load_tokenizer(args)
        shape, critic = model_shape(args), critic_parameters(args)
        others = beside_the_policy(args, shape, critic)
    except UsageError as error:
        yield Finding(FAIL, "model", str(error))
        return
    yield Finding(PASS, "model", f"{args.actor.model_name_or_path}: {shape.parameters:,} parameters, {shape.layers} layers")
    yield from memory_needed(shape, args, device, others)
    yield _sharing(args, config)
    if config.drafts.mode != "off":
        yield drafts(config.drafts.tokens, device)
    try:
        questions, held_out, said, warnings = load_data(args, tokenizer)
        unparsable = check_labels(config, questions + held_out)
    except UsageError as error:
        yield Finding(FAIL, "data", str(error))
        return
    steps = len(questions) * args.train.num_episodes // args.rollout.batch_size
    yield Finding(PASS, "data", f"{said}, {len(held_out):,} held out; at most {steps:,} steps")
    if device == "cuda":
        yield a_step(shape, args, config, fmean(len(q.prompt_ids) for q in questions), device_name())
    for warning in filter(None, (unparsable, *warnings)):
        yield Finding(WARN, "data", warning)
    for warning in option_warnings(args, config):
        yield Finding(WARN, "options", warning)
    yield from template(args, tokenizer, questions[0])
    yield from reward(args, config, questions[:_EXAMPLES])
    if args.logger.wandb.key:
        yield attempt("W&B", check_wandb)
    for flag, path in written_folders(args).items():
        try:
            check_folder(path, flag)
        except UsageError as error:
            yield Finding(FAIL, "disk", str(error))
    for needed in by_disk(stored(shape, critic, args, config, len(questions), steps)):
        yield disk(*needed)
    cache = cache_finding(args, questions, tokenizer)
    yield cache
    if cache.level == PASS and (warning := not_verifiable(cache_url(args), config)):
        yield Finding(WARN, "cache", warning)
    if config.init.mode == "import" and cache.level != WARN:  # an older cache says what it holds only after its upgrade
        yield attempt("initial cache", lambda: import_state(args, questions, tokenizer))


def drafts(n_tokens: int, device: str) -> Finding:
    """How engines sample with drafts, which no GPU has run yet."""
    said = (
        f"up to {n_tokens} tokens, on vLLM's model runner V1, with samplers of ours: on a CPU, vLLM's own draw from a wrong "
        "distribution behind drafts (issue 55005)"
    )
    if device == "cpu":
        return Finding(PASS, "drafts", said)
    return Finding(WARN, "drafts", f"{said}; no GPU has run them yet", "compare a short run with --rpo.drafts off")


def model_shape(args: SimpleNamespace) -> memory.ModelShape:
    """The model's sizes, from its configuration, without reading weights. Raises UsageError."""
    from transformers import AutoModelForCausalLM

    return memory.shape_of(*_measures(args, "actor", AutoModelForCausalLM))


def critic_parameters(args: SimpleNamespace) -> int:
    """The critic's parameters, including its value head; 0 without a critic. Raises UsageError."""
    from transformers import AutoModel

    if not args.critic.model_name_or_path:
        return 0
    config, parameters, _ = _measures(args, "critic", AutoModel)  # an adapter adds few
    return parameters + int(config.hidden_size)


def beside_the_policy(args: SimpleNamespace, shape: memory.ModelShape, critic: int) -> dict[str, int]:
    """The parameters of the models that share the policy's devices, by name. Raises UsageError."""
    from transformers import AutoModel

    apart, found = {what for what, _, _ in required_devices(args)}, {}
    if args.algo.kl.init_coef > 0 and "reference" not in apart:
        found["reference"] = shape.parameters
    if critic and "critic" not in apart:
        found["critic"] = critic
    if args.train.colocate_all and not args.reward.remote_url and not (critic and args.train.colocate_critic_reward):
        found["reward model"] = _measures(args, "reward", AutoModel)[1]
    return found


def _measures(args: SimpleNamespace, name: str, kind: Any) -> tuple[Any, int, int]:
    """Text configuration, parameters of a model that transformers' ``kind`` loads, and of its adapter (--ds.lora.rank)."""
    import torch
    from transformers import AutoConfig

    path, trusted = getattr(args, name).model_name_or_path, args.rpo.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trusted)
        with torch.device("meta"):
            model = kind.from_config(config, trust_remote_code=trusted)
            parameters, adapter = sum(p.numel() for p in model.parameters()), 0
            if rank := args.ds.lora.rank:
                from peft import LoraConfig, get_peft_model

                model = get_peft_model(model, LoraConfig(r=rank, target_modules=args.ds.lora.target_modules))
                adapter = sum(p.numel() for p in model.parameters() if p.requires_grad)
    except (OSError, ValueError) as error:  # missing, of an architecture that ``kind`` does not load, no such modules
        raise UsageError(f"--{name}.model_name_or_path {path}: {error}") from error
    return config.get_text_config(), parameters, adapter


# ── Memory ──


def memory_needed(
    shape: memory.ModelShape, args: SimpleNamespace, device: str, others: Mapping[str, int]
) -> Iterator[Finding]:
    """The sums for a policy process and for an engine device, against the memory of this host's device if it has one."""
    training = [*memory.training_terms(shape, args), *memory.beside_terms(shape, others, args)]
    have = device_memory() if device == "cuda" else host_memory()
    awake = int(args.vllm.gpu_memory_utilization * have) if device == "cuda" else 0  # what an engine takes
    together = args.train.colocate_all and not args.train.async_enable
    yield _to_train(training, args, have, awake if together and not args.vllm.enable_sleep else 0)
    stays = memory.while_generating(training, args) if together else 0
    yield _to_generate(memory.engine_terms(shape, args), args, have, awake, stays)


def _to_train(terms: Sequence[memory.Term], args: SimpleNamespace, have: int, kept: int) -> Finding:
    """``kept``: bytes of the device that an engine keeps while a policy trains."""
    compared = f"; the device has {memory.gib(have)}" if have else "; this host has no device to compare with"
    if kept:
        compared += f", and an engine that does not sleep keeps {memory.gib(kept)} of it"
    needed = f"for each policy process, about, with every path at its longest:\n{memory.written(terms)}{compared}"
    if not have or memory.total(terms) <= have - kept:
        return Finding(PASS, "memory to train", needed)
    remedy = "add --vllm.enable_sleep and --ds.enable_sleep, " if kept else ""
    remedy += "lower --train.micro_batch_size, add --actor.gradient_checkpointing_enable, raise --ds.zero_stage, "
    return Finding(WARN, "memory to train", needed, remedy + "or add devices")


def _to_generate(terms: Sequence[memory.Term], args: SimpleNamespace, have: int, awake: int, stays: int) -> Finding:
    """``awake``: bytes of a GPU that an engine takes, 0 without one; ``stays``: bytes of training beside it."""
    weights, path = terms
    needed, room = f"for each engine device:\n{memory.written(terms)}", awake - weights.bytes
    if room > 0:
        needed += f"\nroom for {room // max(1, path.bytes):,} longest paths at a time"
    if awake and room < path.bytes:
        remedy = "raise --vllm.gpu_memory_utilization or --vllm.tensor_parallel_size, or lower --data.max_len"
        return Finding(FAIL, "memory to generate", needed, remedy)
    if not awake or stays + awake <= have:
        return Finding(PASS, "memory to generate", needed)
    needed += f"\nan engine that is awake takes {memory.gib(awake)}, and {memory.gib(stays)} of training stay beside it"
    remedy = "" if args.ds.enable_sleep else "add --ds.enable_sleep, "
    share = math.floor(100 * (have - stays) / have) / 100
    if share * have >= weights.bytes + path.bytes:
        remedy += f"lower --vllm.gpu_memory_utilization (to {share:.2f}), "
    return Finding(WARN, "memory to generate", needed, remedy + "raise --ds.zero_stage, or add devices")


def _sharing(args: SimpleNamespace, config: RPOConfig) -> Finding:
    reason = cannot_share(args)
    if config.shared_prefix == "off":
        return Finding(WARN, "shared prefix", "off: every sample runs whole in training", "--rpo.shared_prefix auto")
    if reason:
        return Finding(WARN, "shared prefix", f"off, every sample runs whole: {reason}")
    if torn := torn_groups(args):
        return Finding(WARN, "shared prefix", *torn)
    group = args.rollout.n_samples_per_prompt
    what = f"groups of {group} run their prefix once" if group > 1 else "questions run once what they all begin with"
    return Finding(PASS, "shared prefix", f"{what} (checked on the first batch)")


# ── Prompt and template ──


def template(args: SimpleNamespace, tokenizer: Any, question: Question) -> Iterator[Finding]:
    """The first prompt as the model gets it, and common mistakes with templates and special tokens."""
    warn = partial(Finding, WARN, "prompt")
    ids = tokenizer(question.prompt, add_special_tokens=False)["input_ids"]
    shown = question.prompt if len(question.prompt) <= _SHOWN else f"{question.prompt[:_SHOWN]}..."
    yield Finding(PASS, "prompt", f"{len(ids)} tokens, label {question.label!r}:\n{shown}")
    begin, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    if begin is not None and ids[:2] == [begin, begin]:
        yield warn(
            f"it begins with {tokenizer.bos_token!r} twice",
            "remove one from the data or from --data.input_template",
        )
    usual = tokenizer(question.prompt)["input_ids"]
    if begin is not None and usual[:1] == [begin] and ids[:1] != [begin]:
        yield warn(
            f"this tokenizer usually puts {tokenizer.bos_token!r} before a text, but prompts are used unchanged",
            "--data.apply_chat_template, or begin --data.input_template with it",
        )
    if ids[-1] == end:
        yield warn(
            f"it ends with {tokenizer.eos_token!r}, which tells the model that the text is over",
            "a chat template with a generation prompt, or another --data.input_template",
        )
    if tokenizer.chat_template and not args.data.apply_chat_template:
        yield warn(
            "the model has a chat template, but it is not applied",
            "--data.apply_chat_template for a model that was tuned with it; fine for a base model",
        )
    elif args.data.apply_chat_template and not _opens_an_answer(tokenizer):
        yield warn(
            "the chat template adds nothing after the question: the path begins inside the user's turn",
            "a chat_template in the model's tokenizer files that uses add_generation_prompt, or no "
            "--data.apply_chat_template",
        )
    same = " is also the padding token: padding is told apart by each path's length" if pad == end else ""
    yield Finding(PASS, "end of a path", f"{tokenizer.eos_token!r}{same}")


def _opens_an_answer(tokenizer: Any) -> bool:
    turn = [{"role": "user", "content": "?"}]
    closed, opened = (
        tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=prompt) for prompt in (False, True)
    )
    return bool(opened != closed)


# ── Reward ──


def reward(args: SimpleNamespace, config: RPOConfig, questions: list[Question]) -> Iterator[Finding]:
    """The rewards of right answers, ``\\boxed{label}``, and how long a reward call takes."""
    try:
        check_reward_source(config.reward, args.reward.remote_url)
        scorer = make_scorer(config.reward, args.reward.remote_url)
    except UsageError as error:
        yield Finding(FAIL, "reward", str(error))
        return
    if scorer is None:
        yield Finding(PASS, "reward", f"a reward model: {args.reward.model_name_or_path}; it is not loaded here")
        return
    requests = []
    for q in questions:
        answer = f"\\boxed{{{q.label}}}"
        requests.append(RewardRequest(q.question_id, q.prompt + answer, q.prompt, q.label, answer, len(answer)))
    try:
        with closing(scorer):
            scorer.score(requests)  # the first call loads the function
            started = time.perf_counter()
            results = [scorer.score([request])[0] for request in requests]  # together, workers would share the time
            seconds = time.perf_counter() - started
    except (RewardFailures, RewardLoadError) as error:
        yield Finding(FAIL, "reward", str(error), "fix the function or the server; --rpo.reward.timeout limits a call")
        return
    scores = listed([f"\\boxed{{{q.label}}} {r.score:g}" for q, r in zip(questions, results, strict=True)])
    message = f"scores of right answers: {scores}; {1000 * seconds / len(results):.0f} ms per answer"
    if all(result.score > 0 for result in results):
        yield Finding(PASS, "reward", message)
    else:
        remedy = "fine if the reward expects another form; otherwise check --data.label_key and the function"
        yield Finding(WARN, "reward", message, remedy)


# ── Cache ──


def cache_finding(args: SimpleNamespace, questions: list[Question], tokenizer: Any) -> Finding:
    """The finding of ``cache_state``; a cache of an older schema, which only a run upgrades, is a warning."""
    try:
        return Finding(PASS, "cache", cache_state(args, questions, tokenizer))
    except CacheOlder as error:
        remedy = "" if args.ckpt.load_enable else "--ckpt.load_enable to resume that run, or another --ckpt.path"
        return Finding(WARN, "cache", f"{error} Only then can it be checked whether it belongs to this run.", remedy)
    except UserError as error:
        return Finding(FAIL, "cache", str(error))


def cache_state(args: SimpleNamespace, questions: list[Question], tokenizer: Any) -> str:
    """The cache, and the step that the run will start from. Raises UsageError or CacheError."""
    where, url = cache_name(args), cache_url(args)
    tag = Checkpoints.of_run(args).latest() if args.ckpt.load_enable else None
    copy = copy_beside(args, tag)
    if PathCache.is_missing(url):
        if copy:
            return f"{where} is missing: the copy beside checkpoint {tag} will be restored"
        check_steps(args, 0, tag)
        return f"{where} does not exist yet: the run starts at step 0"
    with PathCache.open_to_read(url) as cache:
        # This command takes over a cache in which nothing was sampled, whatever its options.
        its, options = ({}, {}) if cache.holds_nothing else (cache.fingerprints, translated(cache.options))
        mine = fingerprints(args, questions, tokenizer)
        other = [name for name, value in mine.items() if its.get(name, value) != value]
        if other:
            raise UsageError(f"{where} belongs to a run with another {listed(other)}: use another --ckpt.path")
        check_steps(args, cache.latest_step, tag)
        refuse_complete(args, cache, tag)
        if tag and copy:
            check_history(cache, where, tag, copy)
        check_options(args, options, steering_options(args, questions), tag)
        latest = max(cache.latest_step, 0)
        start = f"the run resumes from checkpoint {tag}" if tag else "the run starts at step 0"
        return f"{where}: {cache.count():,} paths, {latest:,} steps; {start}"


def import_state(args: SimpleNamespace, questions: list[Question], tokenizer: Any) -> str:
    """What the run will import: nothing if it has a checkpoint or a complete initial cache. Raises UsageError."""
    resumes = args.ckpt.load_enable and Checkpoints.of_run(args).latest()
    return (None if resumes else check_import(args, questions, tokenizer)) or "complete: the source is not read again"
