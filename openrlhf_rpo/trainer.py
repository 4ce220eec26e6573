"""The training loop: roll out, make experience, train, sync weights, update the cache, commit the step.

One controller (a Ray actor on the driver's node), as in ``openrlhf/trainer/ppo_trainer.py``, whose base class provides
loggers, checkpoints, the KL controller and the PPO step. Only the controller writes to the path cache.
"""

import math
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_rpo.algo.methods.decide import decide
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import Failed, visible
from openrlhf_rpo.exchange.sources import import_source
from openrlhf_rpo.rollout.ahead import source_of
from openrlhf_rpo.rollout.batches import Batch, Batches
from openrlhf_rpo.rollout.experience import eval_logs, to_experiences
from openrlhf_rpo.rollout.generation import Generator
from openrlhf_rpo.rollout.initial_cache import fill_initial_cache
from openrlhf_rpo.rollout.questions import QuestionStream, load_eval_questions, load_questions
from openrlhf_rpo.rollout.rollout import EVAL_STEP, Rollout
from openrlhf_rpo.rollout.scoring import make_scorer
from openrlhf_rpo.rollout.selection import Selection
from openrlhf_rpo.run.checkpoints import Checkpoints, probe, writes
from openrlhf_rpo.run.files import cache_url, fingerprints, model_place
from openrlhf_rpo.run.metrics import GENERATED_TOTAL, cache_metrics, console_line, rollout_metrics
from openrlhf_rpo.run.phases import PhaseClock
from openrlhf_rpo.run.publishing import PRUNE_EVERY, Publisher
from openrlhf_rpo.run.samples import SampleLog
from openrlhf_rpo.run.steering import steering_options
from openrlhf_rpo.training.experience_maker import RPOExperienceMaker, in_sample_order
from openrlhf_rpo.training.passes import needs_old_log_probs, shares_prefixes
from openrlhf_rpo.training.teaching import deal_again, trained_share
from openrlhf_rpo.types import Group, StepRecord
from openrlhf_rpo.upstream import BasePPOTrainer, balance_experiences, get_tokenizer


class _RPOTrainer(BasePPOTrainer):
    def __init__(
        self,
        pretrain: str,
        strategy: Any,
        actor_model_group: Any,
        critic_model_group: Any,
        reward_model_group: Any,
        reference_model_group: Any,
        vllm_engines: Any,
        *,
        logins: Mapping[str, str],
        **generate_kwargs: Any,
    ) -> None:
        """The arguments of upstream's PPOTrainer; options are read from ``strategy.args``.

        ``logins`` are the driver's environment variables for PostgreSQL and W&B.
        """
        os.environ.update(logins)
        args = strategy.args
        args.eval.steps = math.inf if args.eval.steps == -1 else args.eval.steps
        args.ckpt.save_steps = math.inf if args.ckpt.save_steps == -1 else args.ckpt.save_steps
        self.config = RPOConfig.from_namespace(args.rpo)
        tokenizer = get_tokenizer(pretrain, None, "left", strategy, use_fast=not args.data.disable_fast_tokenizer)
        models = (actor_model_group, critic_model_group, reward_model_group, reference_model_group)
        super().__init__(strategy, *models, vllm_engines, tokenizer)
        self.experience_maker = RPOExperienceMaker(self.config, *models, self.kl_ctl, strategy, tokenizer)
        questions, _ = load_questions(args, tokenizer)
        self.eval_questions, _ = load_eval_questions(args, tokenizer)
        self.stream = QuestionStream(questions, args.train.seed, args.train.num_episodes)
        self.cache = self.open_cache(tokenizer)
        self.samples = SampleLog.of_run(self.config, args.ckpt.path, tokenizer)
        self.rollout = Rollout(
            Generator(vllm_engines, args.vllm.enable_sleep),
            make_scorer(self.config.reward, args.reward.remote_url),
            self.cache,
            tokenizer,
            self.config,
            args,
        )
        self.clock = PhaseClock()
        self.selection = Selection(self.stream, self.cache, self.config.method)
        self.batches = Batches(self.rollout, self.selection, args)
        self.source = source_of(self.batches, self.clock, args)
        self.checkpoints = Checkpoints.of_run(args)
        self.publisher = Publisher(self.checkpoints, self.cache, self.config.cache.keep_versions)
        self.max_steps = len(questions) * args.train.num_episodes // args.rollout.batch_size
        self.totals: dict[str, float] = {}
        self.failures = 0  # of rewards
        if self.wandb_logger:  # upstream plots evaluations over an epoch that is never logged, so all at 0
            self.wandb_logger.handle.define_metric("eval/*", step_metric="eval/global_step", step_sync=True)

    def open_cache(self, tokenizer: Any) -> PathCache:
        """Open the run's path cache, and record in it which run it belongs to."""
        args, questions = self.args, self.stream.questions
        marks = fingerprints(args, questions, tokenizer)
        cache = PathCache.open(cache_url(args), marks)
        cache.set_options(steering_options(args, questions))
        cache.describe(questions, model_place(args))
        return cache

    def get_max_steps(self) -> int:
        """Optimizer steps of the whole run, for the learning rate schedule (upstream: ``prepare_datasets``).

        Not counted per episode as upstream does, because a step may span two episodes.
        """
        samples = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        return self.max_steps * (samples // self.args.train.batch_size) * self.args.train.max_epochs

    # ── The loop ──

    def fit(self) -> None:
        with self.publisher:
            self.take_steps()
        self.close()

    def take_steps(self) -> None:
        self.check_shared_folder()
        step = self.resume()
        self.initialize_cache()
        if step == 0:
            self.evaluate(step)
        self.source.start(step + 1, self.max_steps)
        while step < self.max_steps and (batch := self.take(step + 1)) is not None:
            with self.clock("log_probs"):
                experiences = self.make_experience(batch.kept)
            batch = self.with_model_scores(batch, experiences)
            status = self.train_on(experiences, step)
            step += 1
            with self.source.still():
                self.finish(batch, step, status)
        if step < self.max_steps:
            print(f"The data ended after step {step} of {self.max_steps}; more --train.num_episodes give more", flush=True)
        if step % self.args.eval.steps != 0:
            with self.source.still():
                self.evaluate(step)

    def take(self, step: int) -> Batch | None:
        """The batch of a step; None at the end of the data."""
        self.clock.start_step(carried=("cache",))
        return self.source.take(step)

    def finish(self, batch: Batch, step: int, trained: dict[str, Any]) -> None:
        """Send the weights and commit the step; evaluate and write a checkpoint where they are due."""
        with self.clock("weight_sync"):
            self.broadcast_to_vllm()
        self.rollout.gate.version = step
        status = self.commit(batch, step, trained)
        print(console_line(step, self.max_steps, status), flush=True)
        if step % self.args.eval.steps == 0:  # before the checkpoint, which then contains it
            self.evaluate(step)
        self.checkpoint(step, status)

    def check_shared_folder(self) -> None:
        """Raise Failed unless every node sees --ckpt.output_dir and, where the run uses it, --ckpt.path.

        Otherwise models would stay on another node's own disk, or the policy would silently start from the base model and
        the cache be rolled back to step 0.
        """
        ckpt = self.args.ckpt
        folders = {"--ckpt.output_dir": ckpt.output_dir}
        if ckpt.load_enable or (writes(self.args) and (ckpt.save_steps != math.inf or self.eval_questions)):
            folders["--ckpt.path"] = ckpt.path
        groups = [group for group in (self.actor_model_group, self.critic_model_group) if group is not None]
        for flag, folder in folders.items():
            with probe(folder) as file:
                blind = {node for group in groups for node in ray.get(group.async_run_method("blind_to", file=file)) if node}
            if blind:
                raise Failed(
                    f"{flag} {folder} is another folder on {', '.join(sorted(blind))} than on the driver's node: "
                    "it must be on a file system that all nodes share"
                )

    def resume(self) -> int:
        """The step to continue from: that of the last checkpoint, with the cache rolled back to it."""
        self.checkpoints.claim()
        states = self.client_states(0) | self.init_checkpoint_states()
        self.restore_best_checkpoint_state(states)
        step = states["global_step"]
        removed = self.cache.rollback(step)
        self.batches.go_on(self.cache.unfinished())
        self.rollout.gate.version = step
        (self.samples or SampleLog.left_over(self.args.ckpt.path)).rollback(step)
        self.stream.position = states["total_consumed_prompts"]
        self.stream.postponed = list(states.get("postponed_prompts", ()))  # older checkpoints have none
        if self.args.algo.kl.target:  # the adaptive coefficient
            self.kl_ctl.value = states["kl_coef"]
        self.failures = states["reward_failures"]
        if self.rollout.scorer is not None:
            self.rollout.scorer.failures = self.failures
        records = self.cache.records()
        if records:
            self.totals = dict(records[-1].metrics)
        if step:
            self.broadcast_to_vllm()
        if step or removed:
            again = f" {removed} committed steps after it are run again." if removed else ""
            print(f"Resumed at step {step}: {self.cache.count():,} cached paths.{again}", flush=True)
        return step

    def make_experience(self, groups: list[Group]) -> list[Any]:
        """Forward passes, advantages and returns for all samples, in upstream's micro-batches."""
        samples = [experience for group in groups for experience in to_experiences(group, self.config.method)]
        return self.experience_maker.make(groups, samples)

    def train_on(self, experiences: list[Any], step: int) -> dict[str, Any]:
        """Train actor and critic on the experiences (upstream: ``train_step``); returns the optimizer's metrics."""
        status = self._compute_rollout_stats(experiences)
        status["rpo/trained_share"] = share = trained_share(experiences, self.args)
        with self.clock("log_probs"):
            dealt = deal_again(experiences, self.args) if share < 1 else experiences
            if needs_old_log_probs(self.args):  # else the training step has them, and reports the gap
                status["rollout_log_prob_gap"] = self.experience_maker.fill_in_old_log_probs(dealt)
            if self.args.train.dynamic_batch_enable and not shares_prefixes(self.args):
                dealt = balance_experiences(dealt, self.args)
        with self.clock("train"):
            status |= self.train_policy(dealt, step)
        need_finite(status, step + 1)
        return status

    def train_policy(self, dealt: list[Any], step: int) -> dict[str, Any]:
        """Actor, critic and the adaptive KL coefficient, on micro-batches as the ranks get them."""
        refs = []
        if step > self.args.critic.freezing_steps:  # a frozen actor would keep them for later
            refs += self.actor_model_group.async_run_method_batch(method_name="append", experience=dealt)
        if self.critic_model_group is not None:
            refs += self.critic_model_group.async_run_method_batch(method_name="append", experience=dealt)
        ray.get(refs)
        status: dict[str, Any] = self.ppo_train(step)
        if "kl" in status:
            self.kl_ctl.update(status["kl"], self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt)
        return status

    def commit(self, batch: Batch, step: int, trained: dict[str, Any]) -> dict[str, float]:
        """Decide what enters the cache, and commit it with the step's metrics in one transaction."""
        groups = batch.groups
        cached = self.cache.with_path(group.question.question_id for group in groups)
        decisions = [
            decide(self.config.method, group, group.question.question_id in cached, step, self.args.train.seed)
            for group in groups
        ]
        metrics = {name: float(value) for name, value in trained.items() if value is not None}
        metrics |= rollout_metrics(groups, step, self.totals, batch.waiting) | cache_metrics(decisions)
        metrics["rpo/groups_too_old"] = float(self.batches.n_too_old(batch.dropped, step))
        if self.args.algo.dynamic_filtering_enable:
            metrics["dynamic_filtering_pass_rate"] = 100 * fmean(self.batches.trains(group, step) for group in groups)
        metrics |= {
            "rpo/reward_failures_total": float(batch.failures),
            **batch.metrics,
            **self.source.timing(batch),
        }
        if "rollout_log_prob_gap" in trained:  # else only the critic trained, without old log-probs
            metrics["rpo/rollout_log_prob_gap"] = trained["rollout_log_prob_gap"]
        self.totals, self.failures = metrics, batch.failures
        with self.clock("cache"):  # counted in the next step's record
            record = StepRecord(step, self.stream.episode, self.stream.position, metrics)
            in_flight = self.source.in_flight() if self.has_checkpoint(step) else []
            self.cache.commit_step(record, decisions, in_flight)
            self.batches.committed(step)
        if self.samples is not None:
            self.samples.write(step, batch.kept, batch.dropped)
        return metrics

    def initialize_cache(self) -> None:
        fill_initial_cache(self.cache, self.rollout, self.stream.questions, self.config, partial(import_source, self.args))
        self.totals.setdefault(GENERATED_TOTAL, self.cache.initial_tokens)

    # ── Scores that come from a reward model ──

    def with_model_scores(self, batch: Batch, experiences: list[Any]) -> Batch:
        """The groups with the reward model's scores; unchanged if they were scored at rollout."""
        if self.rollout.scorer is not None:
            return batch
        scores = iter(in_sample_order(experiences, [e.scores for e in experiences]))
        rewards = iter(in_sample_order(experiences, [e.info["shaped_reward"] for e in experiences]))
        kept = []
        for group in batch.kept:
            samples = [replace(s, score=next(scores), shaped_reward=next(rewards)) for s in group.samples]
            kept.append(replace(group, samples=tuple(samples)))
        return replace(batch, kept=kept)

    # ── Evaluation, logs, checkpoints ──

    def has_checkpoint(self, step: int) -> bool:
        """Whether a run may resume from this step: evaluations, the last included, may write a checkpoint (the best so far).
        With --rpo.tail groups wait, and the last may come before ``max_steps``."""
        due = step % self.args.ckpt.save_steps == 0 or step % self.args.eval.steps == 0
        return due or step == self.max_steps or self.config.tail < 1

    def evaluate(self, step: int) -> dict[str, float]:
        """Held-out accuracy from the bare question; keeps the best checkpoint, as upstream does."""
        if not self.eval_questions or self.args.eval.steps == math.inf:
            return {}
        started = time.perf_counter()
        n = self.args.eval.n_samples_per_prompt
        sampling = replace(self.rollout.sampling, n_samples=n, temperature=self.args.eval.temperature)
        with self.rollout.apart():
            groups = self.rollout.sample_bare(self.eval_questions, sampling, EVAL_STEP)
        logs = eval_logs(groups, n)
        logs["eval_seconds"] = time.perf_counter() - started
        for tracker in (self.wandb_logger, self.tensorboard_logger):
            if tracker:
                tracker.log_eval(step, logs)
        self.cache.record_evaluation(step, logs)
        shown = "  ".join(f"{k.removeprefix('eval_')} {v:.3f}" for k, v in logs.items() if "pass" in k)
        print(f"evaluation at step {step}: {visible(shown)}  ({logs['eval_seconds']:.1f} s)", flush=True)
        if step:
            self.publisher.wait()
            best = self.best_eval_metric_value
            with self.checkpoints.staging_cleared_on_error():
                self.save_best_checkpoint(logs, step, self.client_states(step))
            begun = self.publisher.begin(f"best_global_step{step}")
            if self.best_eval_metric_value != best:
                need_seen(begun, step, self.args)
        return logs

    def client_states(self, step: int) -> dict[str, Any]:
        """The run's state in a checkpoint besides the weights; the rest follows from it or is in the cache."""
        return {
            "episode": self.stream.episode,
            "global_step": step,
            "total_consumed_prompts": self.stream.position,
            "postponed_prompts": list(self.stream.postponed),
            "data_loader_state_dict": {},
            "kl_coef": float(self.kl_ctl.value),
            "reward_failures": self.failures,
        }

    def checkpoint(self, step: int, status: dict[str, Any]) -> None:
        """Write upstream's logs and, every --ckpt.save_steps, a checkpoint with a copy of the cache."""
        saves = step % self.args.ckpt.save_steps == 0
        if saves:
            self.publisher.wait()
        # What another step has staged is published meanwhile.
        with self.checkpoints.staging_cleared_on_error() if saves else nullcontext():
            self.save_logs_and_checkpoints(step, status, self.client_states(step))
        if saves:
            need_seen(self.publisher.begin(f"global_step{step}"), step, self.args)
        elif step % PRUNE_EVERY == 0:
            self.publisher.prune(step)

    def close(self) -> None:
        if self.rollout.scorer is not None:
            self.rollout.scorer.close()
        self.cache.close()
        for tracker in (self.wandb_logger, self.tensorboard_logger):
            if tracker:
                tracker.close()


def need_seen(begun: bool, step: int, args: SimpleNamespace) -> None:
    """Raises Failed when a due checkpoint was not ``begun`` to be published, because nothing of it is seen here."""
    if not begun and writes(args):
        raise Failed(
            f"the checkpoint of step {step} cannot be seen on the driver's node any more: is the file system of "
            f"--ckpt.path {args.ckpt.path} still there?"
        )


_FINITE = (
    *("policy_loss", "critic_loss", "actor_grad_norm", "critic_grad_norm"),
    *("rollout_log_prob_gap", "kl", "ppo_kl", "reward", "return"),
)


def need_finite(status: dict[str, Any], step: int) -> None:
    """Raises Failed when a loss, norm, gap or reward is NaN or infinite, before anything of the step is saved."""
    wrong = [f"{name} is {status[name]:g}" for name in _FINITE if not math.isfinite(status.get(name) or 0.0)]
    if wrong:
        raise Failed(
            f"step {step}: {', '.join(wrong)}, so the weights are useless now. Nothing of this step is saved: cache and "
            "checkpoints end with earlier steps, and --ckpt.load_enable resumes from the last checkpoint. Likely causes: "
            "--actor.adam.lr is too large, --rollout.temperature is near 0, or the numbers overflow (--ds.param_dtype)"
        )


RPOTrainer = ray.remote(_RPOTrainer)
