"""One step's rollout: choose each group's prefix, let the engines finish it, score and shape what came back."""

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from openrlhf_rpo.algo.budget import token_budget
from openrlhf_rpo.algo.cut import CutRule, Stored, cut_rule
from openrlhf_rpo.algo.cut.prefixes import choose_prefixes, choose_rule, paths_to_cut
from openrlhf_rpo.algo.draws import request_seed
from openrlhf_rpo.algo.history import expected_score, share_to_write
from openrlhf_rpo.algo.reward_shaping import shape_rewards
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.phases import PhaseClock
from openrlhf_rpo.rollout.engine import Draft, Generated, Request
from openrlhf_rpo.rollout.generation import Generator
from openrlhf_rpo.rollout.reward_pool import RewardRequest
from openrlhf_rpo.rollout.scoring import Scorer
from openrlhf_rpo.types import OWN, Group, Path, Prefix, Question, Sample, Visit

EVAL_STEP = -1  # the "step" that keys the seeds of evaluation: the same questions are sampled alike every time


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample: ``n_samples`` a question, at most ``max_path_length`` tokens of path (None: up to max_len)."""

    n_samples: int
    temperature: float
    top_p: float
    max_path_length: int | None


class Rollout:
    """Knows the engines, the rewards and the cache (which it only reads). ``clock`` counts its seconds.

    Without a cache it samples from bare questions and from given prefixes only.
    """

    def __init__(
        self,
        generator: Generator,
        scorer: Scorer | None,
        cache: PathCache | None,
        tokenizer: Any,
        config: RPOConfig,
        args: SimpleNamespace,
    ) -> None:
        self.generator = generator
        self.scorer = scorer
        self.cache = cache
        self.tokenizer = tokenizer
        self.config = config
        self._by_history = config.advantage.baseline == "history"
        self.seed = args.train.seed
        self.max_len = args.data.max_len
        self.clock = PhaseClock()
        self.sampling = Sampling(
            n_samples=args.rollout.n_samples_per_prompt,
            temperature=args.rollout.temperature,
            top_p=args.rollout.top_p,
            max_path_length=args.rollout.max_new_tokens,
        )

    def roll_out(self, questions: Sequence[Question], step: int, bare: Set[str] = frozenset()) -> list[Group]:
        """The groups of one training step, in the order of ``questions``; scored unless a reward model will.

        The questions named in ``bare`` start from the bare question although a path may be cached.
        """
        options, n = self.config.cut, self.sampling.n_samples
        stored = self.stored([q.question_id for q in questions])
        rules = [
            None if q.question_id in bare else choose_rule(known, options, self.seed, step, q.question_id)
            for q, known in zip(questions, stored, strict=True)
        ]
        stored = self.with_log_probs(questions, stored, rules)
        prefixes = [
            choose_prefixes(
                rule, known, n, options, self.seed, step, q.question_id, self.max_path_length(q, self.sampling) - 1
            )
            for q, known, rule in zip(questions, stored, rules, strict=True)
        ]
        groups = self.score(self._generate(questions, prefixes, self.sampling, step))
        if self._by_history:
            groups = [
                _with_expected(group, known.visits, OWN if rule is None else rule.slot)
                for group, known, rule in zip(groups, stored, rules, strict=True)
            ]
        return groups

    def stored(self, question_ids: list[str]) -> list[Stored]:
        """What the cache knows of each question, as far as the cut rules and the baseline want to know it."""
        if self.cache is None:
            raise ValueError("a training step's rollout needs the path cache")
        rules = [cut_rule(name) for name in self.config.cut.rules]
        with self.clock("cache"):
            if any(rule.each or rule.slot != OWN for rule in rules):
                paths = self.cache.slots(question_ids)
            else:
                paths = {name: {OWN: path} for name, path in self.cache.paths(question_ids).items()}
            if self.config.cut.max_reuses or self._by_history or any(rule.history for rule in rules):
                visits = self.cache.all_visits(question_ids)
            else:
                visits = {name: (visit,) for name, visit in self.cache.visits(question_ids).items()}
        return [Stored(paths.get(name, {}), visits.get(name, ())) for name in question_ids]

    def with_log_probs(
        self, questions: Sequence[Question], stored: list[Stored], rules: Sequence[CutRule | None]
    ) -> list[Stored]:
        """The same, with the current policy's log-probs of the paths that a rule wants to have scored.

        A path that fills --data.max_len has a token more than an engine takes: its last one, which is cut in any case,
        counts as impossible.
        """
        asked = {
            i: list(dict.fromkeys(path.slot for path in paths_to_cut(rule, stored[i], self.sampling.n_samples)))
            for i, rule in enumerate(rules)
            if rule is not None and rule.scores
        }
        if not asked:
            return stored
        drafts = [[self._draft(questions[i], stored[i].paths[slot]) for slot in slots] for i, slots in asked.items()]
        places, known = list(asked), list(stored)
        with self.clock("verify"), self.generator as generator:
            for k, log_probs in generator.score(drafts):
                i = places[k]
                known[i] = replace(
                    stored[i],
                    log_probs={
                        slot: (*scored, *[-math.inf] * (len(stored[i].paths[slot]) - len(scored)))
                        for slot, scored in zip(asked[i], log_probs, strict=True)
                    },
                )
        return known

    def sample_bare(
        self,
        questions: Sequence[Question],
        sampling: Sampling,
        step: int,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> list[Group]:
        """Groups from the bare question, for evaluation and for the initial cache; scored, never shaped by the cache."""
        return self.sample_from(questions, [(Prefix(),) * sampling.n_samples] * len(questions), sampling, step, on_group)

    def sample_from(
        self,
        questions: Sequence[Question],
        prefixes: Sequence[tuple[Prefix, ...]],
        sampling: Sampling,
        step: int,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> list[Group]:
        """Groups from given prefixes, one for each sample of each question; scored. ``sampling.n_samples`` plays no part."""
        return self.score(self._generate(questions, prefixes, sampling, step, on_group))

    def prompt_ids(self, question: Question) -> tuple[int, ...]:
        return tuple(self.tokenizer(question.prompt, add_special_tokens=False)["input_ids"])

    def max_path_length(self, question: Question, sampling: Sampling) -> int:
        """Tokens that a path of this question may have: max_new_tokens, and what max_len leaves after the prompt."""
        room = self.max_len - len(self.prompt_ids(question))
        return min(room, sampling.max_path_length or room)

    def score(self, groups: list[Group]) -> list[Group]:
        """Fill in scores and shaped rewards; with a reward model (no scorer) they come later."""
        if self.scorer is None:
            return groups
        with self.clock("reward"):
            results = iter(self.scorer.score([r for group in groups for r in self._reward_requests(group)]))
        scored = []
        for group in groups:
            samples = [(sample, next(results)) for sample in group.samples]
            rewards, scores = zip(*((r.reward, r.score) for _, r in samples), strict=True)
            shaped = shape_rewards(rewards, [s.path_length for s, _ in samples], self.config.shaping, scores)
            members = (
                replace(s, score=r.score, shaped_reward=x, reward_logs=r.extra)
                for (s, r), x in zip(samples, shaped, strict=True)
            )
            scored.append(replace(group, samples=tuple(members)))
        return scored

    def _generate(
        self,
        questions: Sequence[Question],
        prefixes: Sequence[tuple[Prefix, ...]],
        sampling: Sampling,
        step: int,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> list[Group]:
        groups: list[Group | None] = [None] * len(questions)
        bar = tqdm(total=len(questions), desc="Generating", unit="group", delay=5, mininterval=5)
        with self.clock("rollout"), bar, self.generator as generator:
            requests = [self._requests(q, p, sampling, step) for q, p in zip(questions, prefixes, strict=True)]
            for i, generated in generator.generate(requests):
                samples = (_sample(p, g) for p, g in zip(prefixes[i], generated, strict=True))
                group = groups[i] = Group(questions[i], tuple(samples))
                bar.update()
                on_group(group)
        return [group for group in groups if group is not None]

    def _requests(self, question: Question, prefixes: tuple[Prefix, ...], sampling: Sampling, step: int) -> list[Request]:
        prompt = self.prompt_ids(question)
        max_path_length = self.max_path_length(question, sampling)
        return [
            Request(
                token_ids=(*prompt, *prefix.token_ids),
                max_tokens=token_budget(len(prefix), prefix.cut, max_path_length, self.config.budget),
                seed=request_seed(self.seed, step, question.question_id, i),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                rejected=prefix.rejected,
            )
            for i, prefix in enumerate(prefixes)
        ]

    def _draft(self, question: Question, path: Path) -> Draft:
        prompt = self.prompt_ids(question)
        token_ids = path.token_ids[: self.max_len - 1 - len(prompt)]
        return Draft((*prompt, *token_ids), len(token_ids))

    def _reward_requests(self, group: Group) -> list[RewardRequest]:
        """As upstream: the query is prompt and path decoded together, special tokens included."""
        prompt = list(self.prompt_ids(group.question))
        paths = [[*s.prefix.token_ids, *s.response_ids] for s in group.samples]
        queries = self.tokenizer.batch_decode([prompt + path for path in paths], skip_special_tokens=False)
        responses = self.tokenizer.batch_decode(paths, skip_special_tokens=True)
        question = group.question
        return [
            RewardRequest(question.question_id, query, question.prompt, question.label, response, len(path))
            for query, response, path in zip(queries, responses, paths, strict=True)
        ]


def _sample(prefix: Prefix, generated: Generated) -> Sample:
    finish = "length" if generated.finish_reason == "length" else "stop"
    return Sample(prefix, generated.token_ids, generated.log_probs, finish)


def _with_expected(group: Group, visits: Sequence[Visit], slot: int) -> Group:
    """The group with the chance that its question's earlier visits gave to each sample, of the path in ``slot``."""
    members = (
        replace(sample, expected=expected_score(visits, share_to_write(sample.prefix.cut, len(sample.prefix)), slot))
        for sample in group.samples
    )
    return replace(group, samples=tuple(members))
