"""Measure a model on the testbed: ``python -m lab.testbed.measure --level main`` prints figures as JSON."""

import argparse
import datetime
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache

from lab.testbed import LEVELS, model_dir
from lab.testbed.task import answer, boxed, draw_split, wrong_steps
from openrlhf_rpo.evaluation.pass_at_k import pass_at_k

MAX_NEW_TOKENS = 600


@dataclass(frozen=True, slots=True)
class Sample:
    """A response: text without end token, length in tokens with it, and whether it ended by itself."""

    question: str
    text: str
    tokens: int
    ended: bool

    @property
    def right(self) -> bool:
        """Whether the box holds the label."""
        return boxed(self.text) == answer(self.question)

    @property
    def lucky(self) -> bool:
        """Whether the answer is right although some step is wrong."""
        return self.right and bool(wrong_steps(self.question, self.text))


def load(folder: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A saved model in float32 and evaluation mode, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[str],
    temperature: float,
    seed: int,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_size: int = 256,
) -> list[Sample]:
    """One response per question, in order (repeat a question for a group). Temperature 0 is greedy.

    Samples depend on the seed and the batches, so the same call gives the same samples.
    """
    generator = torch.Generator().manual_seed(seed)
    responses: list[list[int]] = []
    for start in range(0, len(questions), batch_size):
        prompts = tokenizer(questions[start : start + batch_size], padding=True, padding_side="left", return_tensors="pt")
        responses += _generate(model, tokenizer.eos_token_id, prompts, temperature, generator, max_new_tokens)
    eos = tokenizer.eos_token_id
    return [
        Sample(question, tokenizer.decode([t for t in ids if t != eos]), len(ids), ids[-1] == eos)
        for question, ids in zip(questions, responses, strict=True)
    ]


def _generate(model, eos, prompts, temperature, generator, max_new_tokens) -> list[list[int]]:
    """Token ids of each response, including the end token. Finished rows are dropped from the batch at times."""
    ids, mask = prompts["input_ids"], prompts["attention_mask"]  # both [rows, prompt length], padded on the left
    rows = torch.arange(len(ids))
    done = torch.zeros(len(ids), dtype=torch.bool)
    responses: list[list[int]] = [[] for _ in ids]
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for _ in range(max_new_tokens):
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if temperature == 0:
            ids = logits.argmax(-1, keepdim=True)
        else:
            ids = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        for row, token, ended in zip(rows.tolist(), ids[:, 0].tolist(), done.tolist(), strict=True):
            if not ended:
                responses[row].append(token)
        done |= ids[:, 0] == eos
        if done.all():
            break
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        positions = positions[:, -1:] + 1
        if done.sum() * 4 > len(done):
            keep = (~done).nonzero()[:, 0]
            cache.batch_select_indices(keep)
            rows, ids, mask, positions, done = rows[keep], ids[keep], mask[keep], positions[keep], done[keep]
    return responses


def figures(model, tokenizer, level: str, n_questions: int, n_samples: int, seed: int) -> dict[str, float | str]:
    """Figures of a model on held-out questions of a level: ``n_samples`` responses each at temperature 1, and a greedy one.

    ``lucky`` is the share of right responses with a wrong step; lengths are in tokens, including the end token.
    """
    questions = draw_split(level, n_questions, seed, heldout=True)
    greedy = sample(model, tokenizer, questions, 0.0, seed)
    drawn = sample(model, tokenizer, [q for q in questions for _ in range(n_samples)], 1.0, seed)
    right = [sum(s.right for s in drawn[i : i + n_samples]) for i in range(0, len(drawn), n_samples)]
    lengths = [s.tokens for s in drawn]
    report = {
        "questions": n_questions,
        "samples": n_samples,
        "greedy": sum(s.right for s in greedy) / n_questions,
        **{f"pass@{k}": sum(pass_at_k(n_samples, r, k) for r in right) / n_questions for k in (1, 8, 64) if k <= n_samples},
        "lucky": sum(s.lucky for s in drawn) / max(1, sum(right)),
        "boxed": sum(boxed(s.text) is not None for s in drawn) / len(drawn),
        "ended": sum(s.ended for s in drawn) / len(drawn),
        "tokens_mean": sum(lengths) / len(lengths),
        "tokens_min": min(lengths),
        "tokens_max": max(lengths),
        "wrong_steps_mean": sum(len(wrong_steps(s.question, s.text)) for s in drawn) / len(drawn),
    }
    return {k: round(v, 4) for k, v in report.items()} | {"date": datetime.date.today().isoformat()}


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure a model on the testbed and print the figures as JSON.")
    parser.add_argument("--level", choices=sorted(LEVELS), required=True, help="level whose questions are asked")
    parser.add_argument("--model", help="folder of the model (default: the level's base model)")
    parser.add_argument("--questions", type=int, default=128, help="number of held-out questions")
    parser.add_argument("--samples", type=int, default=8, help="responses per question at temperature 1")
    parser.add_argument("--seed", type=int, default=0, help="seed of the questions and of the sampling")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model or model_dir(args.level))
    print(json.dumps(figures(model, tokenizer, args.level, args.questions, args.samples, args.seed), indent=2))


if __name__ == "__main__":
    main()
