"""What the recipes set, against the paper and against each other."""

import pytest

from openrlhf_rpo.launch.options import parse

BASE = "train_rpo_grpo_1.5b.sh"
RECIPES = ["rpo_grpo_1.5b", "rpo_dapo_1.5b", "rpo_grpo_7b", "rpo_dapo_7b"]
DAPO = {"--rpo.preset": "dapo", "--rpo.dynamic.max_batches": "10"}
PAPER_RUNS = [*(f"train_{recipe}.sh" for recipe in RECIPES), "train_rpo_paper_7b.sh"]


@pytest.mark.parametrize("name", PAPER_RUNS)
def test_a_step_is_the_papers_96_questions_by_6_samples(shell, name):
    args = parse(shell.command(name))
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt, args.train.batch_size) == (96, 6, 576)
    assert (args.rollout.temperature, args.rollout.max_new_tokens, args.train.num_episodes) == (0.7, 4096, 4)
    assert args.rpo.method == ("paper" if name == "train_rpo_paper_7b.sh" else "rpo")
    assert (args.rpo.cut.max, args.rpo.update.epsilon, args.rpo.shaping.alpha) == ("ratio:0.5", 0.1, 0.01)
    assert (args.rpo.shaping.min, args.rpo.shaping.max) == (0.5, 1.0)
    assert args.rollout.micro_batch_size == args.train.micro_batch_size == 6  # a group, which shares its prefix


def test_the_readme_shows_the_command_of_the_script(shell):
    assert shell.command("README") == shell.command(BASE)


def test_the_four_recipes_are_two_models_by_two_estimators(shell, differences):
    small, large = shell.command(BASE), shell.command("train_rpo_grpo_7b.sh")
    assert differences(small, shell.command("train_rpo_dapo_1.5b.sh")) == DAPO
    assert differences(large, shell.command("train_rpo_dapo_7b.sh")) == DAPO
    assert parse(large).actor.model_name_or_path.endswith("-7B")
    assert set(differences(small, large)) == {"--actor.model_name_or_path", "--vllm.gpu_memory_utilization"}


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("variant_without_rpo.sh", {"--rpo.method": "off", "--rpo.shaping.alpha": "0"}),
        ("variant_without_replay.sh", {"--rpo.method": "off"}),
        ("variant_without_length_reward.sh", {"--rpo.shaping.alpha": "0"}),
    ],
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_variant_changes_only_what_it_is_named_for_in_any_recipe(shell, differences, variant, expected, recipe):
    words = shell.command(variant, RECIPE=recipe)
    assert differences(shell.command(f"train_{recipe}.sh"), words) == expected
    assert recipe in parse(words).ckpt.path


def test_the_paper_to_the_letter_leaves_no_choice_of_the_project(shell):
    args = parse(shell.command("train_rpo_paper_7b.sh"))
    assert args.rpo.method == "paper"
    assert (args.rpo.init.mode, args.rpo.budget.rule, args.rpo.shaping.scope) == ("bulk", "factor:1", "all")


def test_resuming_is_the_same_command_and_one_flag(shell):
    assert shell.command("train_rpo_resume.sh") == [*shell.command(BASE), "--ckpt.load_enable"]


def test_ppo_has_a_critic_and_none_of_a_groups_estimators(shell):
    args = parse(shell.command("train_rpo_ppo_critic.sh"))
    assert args.algo.advantage.estimator == "gae" and args.critic.model_name_or_path == args.actor.model_name_or_path
    assert (args.actor.loss_agg_mode, args.algo.kl.use_loss) == ("token-mean", False)


def test_a_reward_model_is_the_only_source_of_rewards(shell):
    args = parse(shell.command("train_rpo_reward_model.sh"))
    assert args.reward.model_name_or_path and not args.reward.remote_url and not args.eval.dataset
