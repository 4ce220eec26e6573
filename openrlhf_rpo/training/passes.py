"""Which forward passes of a step change something. Reads the options only; importing it loads nothing."""

from types import SimpleNamespace


def needs_old_log_probs(args: SimpleNamespace) -> bool:
    """Whether the old log-probs take a pass of their own before training.

    When exactly one optimizer step follows each rollout, the old policy is the current one: its log-probs are those of
    the training step itself. What reads them earlier keeps the pass: a KL penalty in the reward, the weights of prefix
    tokens, steps that train the critic alone; and LoRA dropout, which is off in that pass and on in training.
    """
    one_update = (
        args.train.max_epochs == 1
        and args.train.batch_size == args.rollout.batch_size * args.rollout.n_samples_per_prompt
        and args.critic.freezing_steps < 0
    )
    kl_in_reward = args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss
    weighted = args.rpo.prefix_loss.mode == "weighted"
    return not one_update or kl_in_reward or weighted or args.ds.lora.dropout > 0


def cannot_share(args: SimpleNamespace) -> str | None:
    """Why these options keep the plain path (a clause for the log), or None when prefixes can be shared."""
    reasons = {
        "--ds.ring_attn_size splits rows over devices": args.ds.ring_attn_size > 1,
        "--ds.tensor_parallel_size splits heads over devices": args.ds.tensor_parallel_size > 1,
        "--ds.use_liger_kernel replaces the model's forward": args.ds.use_liger_kernel,
        "--actor.aux_loss_coef counts the router's choices by token": args.actor.aux_loss_coef > 1e-8,
        "--rollout.n_samples_per_prompt 1 has nothing to share": args.rollout.n_samples_per_prompt == 1,
        "a critic or a reward model runs whole the rows that --train.dynamic_batch_enable would count once": (
            args.train.dynamic_batch_enable and (args.algo.advantage.estimator == "gae" or not args.reward.remote_url)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def sharing_mode(args: SimpleNamespace) -> str:
    """What a model that cannot share shall do: "auto", run whole rows, or "on", end the run.

    Dynamic micro-batches are filled with tokens that count once; whole, they would not fit.
    """
    return "on" if args.train.dynamic_batch_enable else args.rpo.shared_prefix


def shares_prefixes(args: SimpleNamespace) -> bool:
    """Whether groups are kept together and run with their prefix once (the model may still turn it down)."""
    return args.rpo.shared_prefix != "off" and cannot_share(args) is None
