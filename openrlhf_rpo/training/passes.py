"""Which forward passes a step needs. Reads only the options and imports nothing heavy."""

from types import SimpleNamespace

LOGITS_AT_ONCE = 2**26
"""Logits computed at a time: 256 MiB in float32."""


def needs_old_log_probs(args: SimpleNamespace) -> bool:
    """Whether the old log-probs need a forward pass of their own before training.

    With exactly one optimizer step per rollout, the old policy is the current one, so the training step's log-probs serve.
    The pass is still needed if a KL penalty in the reward reads them earlier, or with LoRA dropout, which is off in that
    pass and on in training.
    """
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    one_update = args.train.max_epochs == 1 and args.train.batch_size == samples
    return not one_update or _kl_in_reward(args) or args.ds.lora.dropout > 0


def old_log_probs_come_first(args: SimpleNamespace) -> bool:
    """Whether their pass runs before there are advantages, beside those of the other models: rewards read them, or every
    sample is trained on anyway."""
    all_teach = args.algo.advantage.estimator == "gae" or not learns_from_advantages_alone(args)
    return _kl_in_reward(args) or (needs_old_log_probs(args) and all_teach)


def learns_from_advantages_alone(args: SimpleNamespace) -> bool:
    """Whether the policy has no other term in its loss, so that a sample without an advantage has no gradient."""
    kl = args.algo.kl.use_loss and args.algo.kl.init_coef > 0
    return not kl and args.actor.entropy_coef is None and args.actor.aux_loss_coef <= 1e-8


def _kl_in_reward(args: SimpleNamespace) -> bool:
    return args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss


def cannot_share(args: SimpleNamespace) -> str | None:
    """Why these options rule out sharing prefixes (a clause for the log), or None."""
    reasons = {
        "--ds.ring_attn_size splits rows over devices": args.ds.ring_attn_size > 1,
        "--ds.tensor_parallel_size splits heads over devices": args.ds.tensor_parallel_size > 1,
        "--ds.use_liger_kernel replaces the model's forward": args.ds.use_liger_kernel,
        "--actor.aux_loss_coef counts the router's choices by token": args.actor.aux_loss_coef > 1e-8,
        "a critic or a reward model runs whole the rows that --train.dynamic_batch_enable would count once": (
            args.train.dynamic_batch_enable and (args.algo.advantage.estimator == "gae" or not args.reward.remote_url)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def works_in_chunks(args: SimpleNamespace) -> bool:
    """Whether the policy never holds the logits of a whole micro-batch (unless its model changes them later)."""
    elsewhere = args.ds.ring_attn_size > 1 or args.ds.tensor_parallel_size > 1 or args.ds.use_liger_kernel
    return args.rpo.enable and not elsewhere and args.actor.aux_loss_coef <= 1e-8


def sharing_mode(args: SimpleNamespace) -> str:
    """What to do if the model cannot share: "auto", run whole rows, or "on", end the run.

    Dynamic micro-batches count shared tokens once, so their whole rows would not fit.
    """
    return "on" if args.train.dynamic_batch_enable else args.rpo.shared_prefix


def shares_prefixes(args: SimpleNamespace) -> bool:
    """Whether groups stay together and run their shared prefix once (unless the model cannot)."""
    return args.rpo.shared_prefix != "off" and cannot_share(args) is None
