"""The names and meanings of all logged and stored metrics (docs/metrics.md is generated from them).

Names are part of the interface, like options. TensorBoard and W&B show a step's metric as ``train/NAME`` and an
evaluation's as ``eval/NAME``; the database has NAME. Names starting with rpo/ or timing/ are ours, others OpenRLHF's.
"""

import re
from typing import NamedTuple


class Figure(NamedTuple):
    """The meaning of a name. ``unit``: "share" (0 to 1), "percent", "tokens", "steps", "seconds", or "" for a number."""

    unit: str
    text: str


ROLLOUT = {
    "rpo/score": Figure("", "mean score of the step's samples, which may start from prefixes"),
    "rpo/generated_tokens": Figure("tokens", "sampled in this step, per sample; an answer accepted whole counts one"),
    "rpo/prefix_tokens": Figure("tokens", "reused from the cache, per sample"),
    "rpo/path_length": Figure("tokens", "prefix and response, per sample"),
    "rpo/truncated_rate": Figure("share", "samples that hit their length limit"),
    "rpo/groups_without_variance": Figure(
        "share", "groups whose scores are all equal: no signal for estimators that compare samples"
    ),
    "rpo/groups_all_right": Figure("share", "groups in which every sample is rewarded"),
    "rpo/groups_all_wrong": Figure("share", "groups in which no sample is rewarded"),
    "rpo/groups_waiting": Figure("", "groups that --rpo.tail stopped and the next step continues"),
    "rpo/groups_from_bare_question": Figure(
        "share",
        "groups that start from the bare question: nothing cached, new from the data, after a reset, or after "
        "--rpo.replay.max_reuses replays (a cut of the whole path does not count)",
    ),
    "rpo/cut": Figure("tokens", "dropped from the cached path, per replayed sample (0 if nothing was replayed)"),
    "rpo/policy_age": Figure(
        "steps", "how far the policy that sampled a token is behind the one that trains on it; mean over new tokens"
    ),
    "rpo/policy_age_max": Figure("steps", "the same for the oldest new token"),
    "rpo/rollout_busy": Figure("share", "of the step in which the rollout side worked, with --train.async_enable"),
    "rpo/train_busy": Figure("share", "of the step in which training did not wait for the rollout side"),
    "rpo/groups_too_old": Figure("", "groups that were stored but not trained on, being older than --rpo.async.max_age"),
    "rpo/cache_age": Figure("steps", "since the replayed path was stored, per replayed sample"),
    "rpo/tokens_generated_total": Figure("tokens", "generated since the start of the run, including the initial cache"),
    "rpo/tokens_reused_total": Figure("tokens", "reused since the start of the run"),
    "rpo/rollout_log_prob_gap": Figure(
        "",
        "mean absolute difference between the engine's and the trainer's log-probs, over the samples that training ran; "
        "large when weights are stale; missing where only the critic trains and nothing needs old log-probs",
    ),
    "rpo/trained_share": Figure(
        "share", "samples that training ran; where it learns from advantages alone, those whose advantage is 0 are left out"
    ),
    "rpo/drafts/tokens": Figure("tokens", "proposed by the question's stored paths, per sample, with --rpo.drafts"),
    "rpo/drafts/accepted": Figure("share", "drafted tokens that matched the policy's draw"),
    "rpo/drafts/seconds_saved": Figure(
        "seconds", "saved by drafts per engine, estimated from its passes without drafts, with --rpo.drafts auto"
    ),
    "rpo/verify/gap": Figure(
        "",
        "mean absolute difference between a token's log-probs when an engine draws it and when it reads it, with "
        "--rpo.method verify in half precision",
    ),
    "rpo/verify/noise": Figure(
        "share", "new tokens that verified reuse would reject for that difference alone; it reads them, so it does not"
    ),
    "rpo/reward_failures_total": Figure("", "rewards that failed since the start of the run, evaluations left out"),
}
CACHE = {
    "rpo/cache/replaced": Figure(
        "share", "questions whose own path was replaced (a wrong one stored beside it does not count)"
    ),
    "rpo/cache/best": Figure("share", "questions that stored their best sample"),
    "rpo/cache/random": Figure("share", "questions that stored another sample"),
    "rpo/cache/every": Figure("share", "questions whose samples were all stored"),
    "rpo/cache/no_rewarded_sample": Figure("share", "questions that kept their path: no sample was rewarded"),
    "rpo/cache/reset": Figure("share", "questions whose next group starts bare: no sample was rewarded"),
    "rpo/cache/update_off": Figure("share", "questions that kept their path: --rpo.update.epsilon off"),
}
TIMING = {
    "timing/verify": Figure(
        "seconds",
        "until the current policy has scored all stored paths, for methods that need it; scored groups already generate "
        "meanwhile",
    ),
    "timing/rollout": Figure("seconds", "generation after that"),
    "timing/reward": Figure("seconds", "waiting for rewards after generation"),
    "timing/log_probs": Figure("seconds", "forward passes before training, and building the batch"),
    "timing/train": Figure("seconds", "forward, backward and optimizer"),
    "timing/weight_sync": Figure("seconds", "sending weights to the engines"),
    "timing/cache": Figure("seconds", "reading the cache, and committing the previous step"),
    "timing/waiting": Figure("seconds", "for the rollout side, with --train.async_enable"),
    "timing/own": Figure("seconds", "the rest of the step"),
    "timing/step_total": Figure(
        "seconds",
        "the whole step, without evaluations and checkpoints; with --train.async_enable the rollout's phases run beside it",
    ),
}
UPSTREAM = {
    "reward": Figure("", "mean reward of the samples trained on, after shaping and OpenRLHF's length penalties"),
    "score": Figure("", "mean score of the samples trained on"),
    "shaped_reward": Figure("", "reward before those penalties; only with a reward model"),
    "return": Figure("", "mean return"),
    "group_reward_std": Figure("", "standard deviation of the rewards in a group"),
    "response_length": Figure("tokens", "generated, per sample trained on"),
    "total_length": Figure("tokens", "prompt and path, per sample"),
    "prefix_length": Figure("tokens", "reused, per sample trained on"),
    "path_length": Figure("tokens", "reused and generated, per sample trained on"),
    "truncated": Figure("share", "samples trained on that hit their length limit"),
    "response_clip_ratio": Figure("share", "the same, under upstream's other name"),
    "rollout_log_prob_gap": Figure("", "as rpo/rollout_log_prob_gap, weighted by micro-batch"),
    "kl": Figure("", "policy against reference model; 0 without one"),
    "logprobs_diff": Figure("", "mean log-prob of the policy minus that of the reference model; 0 without one"),
    "ppo_kl": Figure("", "policy now against policy at rollout"),
    "ppo_clip_ratio": Figure("share", "tokens whose ratio was clipped"),
    "vllm_kl": Figure("", "trainer against engine, with --algo.advantage.is_correction_level"),
    "is_filter_ratio": Figure("share", "tokens that this correction left out, or whose weight it bounded"),
    "policy_loss": Figure("", "loss of the policy"),
    "entropy_loss": Figure("", "entropy, with --actor.entropy_coef"),
    "actor_lr": Figure("", "learning rate of the policy"),
    "actor_grad_norm": Figure("", "norm of the policy's gradient, before clipping"),
    "critic_loss": Figure("", "loss of the critic"),
    "values": Figure("", "mean value predicted by the critic"),
    "critic_lr": Figure("", "learning rate of the critic"),
    "critic_grad_norm": Figure("", "norm of the critic's gradient, before clipping"),
    "rollout/reward_mean": Figure("", "as reward, before the batch is split"),
    "rollout/reward_std": Figure("", "its standard deviation over the samples"),
    "rollout/response_length_mean": Figure("tokens", "as response_length, before the batch is split"),
    "rollout/truncated_rate": Figure("share", "as truncated, before the batch is split"),
    "rollout/num_samples": Figure("", "samples trained on"),
    "dynamic_filtering_pass_rate": Figure("percent", "groups that dynamic sampling could keep"),
}
EVALUATION = {
    "eval_response_length_mean": Figure("tokens", "per response, over all data sources"),
    "eval_truncated_rate": Figure("share", "responses that hit their length limit"),
    "eval_num_samples": Figure("", "samples of the evaluation"),
    "eval_seconds": Figure("seconds", "the whole evaluation"),
}
FAMILIES = {
    "rpo/reward/NAME": Figure("", "a number from a reward function's `extra_logs`, averaged over the samples that have it"),
    "eval_SOURCE_pass1": Figure("share", "mean score of a data source from the bare question (`default` if rows name none)"),
    "eval_SOURCE_passK": Figure("share", "best of K samples per question (`--eval.n_samples_per_prompt`)"),
    "eval_SOURCE_response_length_mean": Figure("tokens", "per response of this data source"),
    "eval_SOURCE_truncated_rate": Figure("share", "responses of this data source that hit their length limit"),
}
"""Names with a variable part: NAME and SOURCE are any text, K a number."""

SECTIONS = {
    "Rollout": ROLLOUT,
    "Path cache": CACHE,
    "Time": TIMING,
    "OpenRLHF's own": UPSTREAM,
    "Evaluation": EVALUATION,
    "Names that depend on the run": FAMILIES,
}
_ONE = {name: figure for section in list(SECTIONS.values())[:-1] for name, figure in section.items()}
_MANY = [
    (re.compile(re.escape(name).replace("NAME", ".+").replace("SOURCE", ".+").replace("passK", r"pass\d+")), figure)
    for name, figure in FAMILIES.items()
]


def meaning(name: str) -> Figure | None:
    """The meaning of a recorded name; None if it is not documented."""
    if name in _ONE:
        return _ONE[name]
    return next((figure for pattern, figure in _MANY if pattern.fullmatch(name)), None)
