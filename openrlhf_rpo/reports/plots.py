"""The plots of the page and their figures, in order. The page draws the figures that a run has."""

from dataclasses import dataclass

from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL


@dataclass(frozen=True)
class Plot:
    """``figures``: name -> label in the legend; a "*" in the name is "$1" in the label.

    ``evaluated``: the figures are those of evaluations. ``note``: how to read the plot.
    """

    title: str
    unit: str
    figures: dict[str, str]
    note: str = ""
    evaluated: bool = False


PLOTS = (
    Plot(
        "Held-out accuracy",
        "share",
        {"eval_*_pass*": "$1 pass@$2"},
        "From the bare question, without a prefix. Choose a checkpoint by this.",
        evaluated=True,
    ),
    Plot(
        "Score and reward in training",
        "",
        {"rpo/score": "score", "reward": "reward"},
        "Both include prefixes and can rise while accuracy falls. The reward is shaped, the score is not.",
    ),
    Plot(
        "Tokens per sample",
        "tokens",
        {"rpo/generated_tokens": "generated", "rpo/prefix_tokens": "reused"},
        "Only generated tokens cost decoding.",
    ),
    Plot(
        "Tokens so far",
        "tokens",
        {GENERATED_TOTAL: "generated", REUSED_TOTAL: "reused"},
    ),
    Plot("Path length", "tokens", {"rpo/path_length": "path"}, "Prefix and response together."),
    Plot("Truncated rate", "share", {"rpo/truncated_rate": "truncated"}, "Samples that hit the length limit."),
    Plot(
        "Groups whose samples agree",
        "share",
        {
            "rpo/groups_without_variance": "without variance",
            "rpo/groups_all_right": "all right",
            "rpo/groups_all_wrong": "all wrong",
        },
        "The price of short cuts: samples that share a long prefix often score the same.",
    ),
    Plot("Groups from the bare question", "share", {"rpo/groups_from_bare_question": "bare"}),
    Plot("Cut", "tokens", {"rpo/cut": "cut"}, "Tokens dropped from a replayed path."),
    Plot("Cache age", "steps", {"rpo/cache_age": "age"}, "Steps since the replayed path was stored."),
    Plot("Cached paths replaced", "share", {"rpo/cache/*": "$1"}, "Share of the step's questions; the other lines say why."),
    Plot("Seconds by phase", "seconds", {"timing/*": "$1"}),
    Plot(
        "Both sides at work",
        "share",
        {"rpo/rollout_busy": "rollout", "rpo/train_busy": "training"},
        "Of a step's time, with --train.async_enable. The side that is always at work sets the pace.",
    ),
    Plot(
        "Age of the policy that sampled",
        "steps",
        {"rpo/policy_age": "mean", "rpo/policy_age_max": "oldest token"},
        "Behind the policy that trains.",
    ),
    Plot("Bounded corrections", "share", {"is_filter_ratio": "tokens"}, "Of engine against trainer, beyond the threshold."),
    Plot("Gradient norm", "", {"actor_grad_norm": "policy", "critic_grad_norm": "critic"}, "Before clipping."),
    Plot("KL", "", {"kl": "to the reference", "ppo_kl": "to the policy at rollout"}),
    Plot("Loss", "", {"policy_loss": "policy", "critic_loss": "critic", "entropy_loss": "entropy"}),
    Plot("Log-probs of engine and trainer", "", {"rpo/rollout_log_prob_gap": "mean gap"}, "Large gaps mean stale weights."),
    Plot("Metrics of the reward function", "", {"rpo/reward/*": "$1"}),
    Plot("Failed rewards", "", {"rpo/reward_failures_total": "so far"}),
    Plot("Dynamic sampling", "percent", {"dynamic_filtering_pass_rate": "groups kept"}),
    Plot("Response length in evaluations", "tokens", {"eval_*_response_length_mean": "$1"}, evaluated=True),
)
