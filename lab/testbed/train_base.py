"""Train a level's base model: ``python -m lab.testbed.train_base --level main --out DIR``.

Two phases. *Foundation*: careful demonstrations, short chains first, to learn the arithmetic. *Habits*: demonstrations by
the level's writer, to learn the writer's habits, including the bad ones. The hard level starts from main's weights and needs
only the second phase.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from tqdm import trange
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from lab.testbed import LEVELS, model_dir
from lab.testbed.measure import figures, load
from lab.testbed.task import CAREFUL, Habits, demonstrate, draw_question, is_heldout
from lab.testbed.tokenizer import build_tokenizer, save_tokenizer

FOUNDATION_STEPS, HABITS_STEPS = 2200, 300
TOKENS_PER_STEP = 3000
FOUNDATION_LR, HABITS_LR, FLOOR = 3e-3, 1e-3, 0.1
# Questions, and samples per question, of a model's figures.json; hard states pass@64.
CLAIMED = {"main": (128, 8), "hard": (96, 64)}


def new_model(vocab_size: int) -> PreTrainedModel:
    """A fresh Qwen2 of about 0.6 million parameters, float32."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocab_size,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            use_cache=True,
        )
    )


def curriculum(progress: float, longest: int) -> tuple[int, int]:
    """Fewest and most steps of a chain at this point (0 to 1) of the foundation."""
    if progress < 0.25:
        return 1, 3
    return (1, 6) if progress < 0.45 else (2, longest)


def batch(
    tokenizer: PreTrainedTokenizerBase, rng: random.Random, habits: Habits, steps: tuple[int, int], tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Demonstrations of training questions with at least ``tokens`` tokens: ids and labels, both [rows, length] int64.

    Right-padded, so causal attention needs no mask; question and padding have the label -100.
    """
    ids, starts, total = [], [], 0
    length = rng.randint(*steps)  # one chain length per batch, for little padding
    while total < tokens:
        question = draw_question(rng, length, length)
        if is_heldout(question):
            continue
        ids.append(torch.tensor(tokenizer(question + demonstrate(question, habits, rng)).input_ids + [1]))
        starts.append(len(question))
        total += len(ids[-1])
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=0)
    labels = padded.masked_fill(padded == 0, -100)
    for row, start in zip(labels, starts, strict=True):
        row[:start] = -100
    return padded, labels


def run_phase(model, tokenizer, name: str, n_steps: int, peak: float, seed: int, draw) -> None:
    """Supervised training with warm-up and cosine decay. ``draw(progress)`` returns (habits, (fewest, most steps))."""
    rng = random.Random(f"{name}/{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    with trange(n_steps, desc=name) as bar:
        for step in bar:
            progress = step / n_steps
            rate = FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2
            optimizer.param_groups[0]["lr"] = peak * rate * min(1.0, (step + 1) / 50)
            ids, labels = batch(tokenizer, rng, *draw(progress), TOKENS_PER_STEP)
            logits = model(input_ids=ids).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}")
    model.eval()


def train(level: str, seed: int, start: str | Path | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The trained base model of a level and its tokenizer. With the model ``start`` there is no foundation phase."""
    torch.manual_seed(seed)
    tokenizer, settings = build_tokenizer(), LEVELS[level]
    longest = max(other.max_steps for other in LEVELS.values())
    if start is None:
        model = new_model(len(tokenizer))
        run_phase(
            model, tokenizer, "foundation", FOUNDATION_STEPS, FOUNDATION_LR, seed,
            lambda progress: (CAREFUL, curriculum(progress, longest)),
        )  # fmt: skip
    else:
        model, _ = load(start)
    span = (settings.min_steps, settings.max_steps)
    run_phase(model, tokenizer, "habits", HABITS_STEPS, HABITS_LR, seed, lambda _: (settings.habits, span))
    return model, tokenizer


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train a base model of the testbed and print its figures as JSON.")
    parser.add_argument("--level", choices=sorted(LEVELS), required=True, help="level to train for")
    parser.add_argument("--out", required=True, help="folder to save model, tokenizer and figures.json in")
    parser.add_argument("--start", help="model to start from (default: none for main, main's model for hard)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and demonstrations")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    start = args.start or (None if args.level == "main" else model_dir("main"))
    started = time.perf_counter()
    model, tokenizer = train(args.level, args.seed, start)
    seconds = time.perf_counter() - started
    model.save_pretrained(args.out)
    save_tokenizer(args.out)
    report = figures(model, tokenizer, args.level, *CLAIMED[args.level], seed=args.seed)
    report |= {"training_seconds": round(seconds), "threads": args.threads}
    (Path(args.out) / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
