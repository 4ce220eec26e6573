"""One step's rollout: choose each group's prefixes, generate the responses, score and shape them."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from openrlhf_rpo.algo.draws import keyed_generator, request_seed
from openrlhf_rpo.algo.methods import Cut, Stored
from openrlhf_rpo.algo.methods.prefixes import choose_paths, choose_prefixes
from openrlhf_rpo.algo.shaping import shape_rewards
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.platform.cpu import FLOAT32
from openrlhf_rpo.rollout.gate import Gate
from openrlhf_rpo.rollout.generation import AnyRequest, Generator
from openrlhf_rpo.rollout.requests import GeneratedGroup, GroupRequest, Request, ScoreRequest, VerifyRequest
from openrlhf_rpo.rollout.reward_call import RewardRequest, RewardResult
from openrlhf_rpo.rollout.scoring import Scorer
from openrlhf_rpo.rollout.selection import Asked
from openrlhf_rpo.rollout.unfinished import begin, count, go_on, shortened, tail, whole
from openrlhf_rpo.run.phases import PhaseClock
from openrlhf_rpo.types import Group, LogProbs, Path, Prefix, Question, Sample, as_log_probs


@dataclass(frozen=True)
class ToVerify:
    """A group whose start depends on what the current policy accepts of its stored paths; ``cut`` lacks their log-probs.

    ``distinct``: the paths of the group, each once.
    """

    cut: Cut
    distinct: Sequence[Path]


EVAL_STEP = -1  # the "step" in the seeds of evaluation, so that every evaluation uses the same ones


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample: ``n_samples`` per question, paths of at most ``max_path_length`` tokens (None: up to max_len)."""

    n_samples: int
    temperature: float
    top_p: float
    max_path_length: int | None


@dataclass(kw_only=True)
class Work:
    """Work for the engines: continue all unfinished samples of ``groups``, in place.

    ``verify``: by index, the groups whose start is not known yet; until then their samples have no token and no prefix.
    ``enough``: groups wanted. ``on_group`` gets the index of each group that is done.
    """

    groups: list[Group]
    sampling: Sampling
    step: int
    verify: dict[int, ToVerify] = field(default_factory=dict)
    drafts: Sequence[Sequence[bytes]] = ()
    enough: int | None = None
    on_group: Callable[[int], None] = lambda i: None


class Rollout:
    """Generates and scores groups. Only reads the cache; ``clock`` measures its phases.

    ``gate`` says when the engines may be used, and which policy they have. ``work`` is what they do or did last.

    Without a cache, only ``sample_bare`` and ``sample_from`` work.
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
        self.seed = args.train.seed
        self.max_len = args.data.max_len
        self.clock = PhaseClock()
        self.gate = Gate()
        self.work: Work | None = None
        self.counts = Counter[str]()  # of the engines, since ``engine_metrics`` was called
        # In half precision a token's log-prob differs between drawing and reading, so a policy would not verify its own.
        self.reads = config.method.scores and args.ds.param_dtype != FLOAT32
        self.sampling = Sampling(
            n_samples=args.rollout.n_samples_per_prompt,
            temperature=args.rollout.temperature,
            top_p=args.rollout.top_p,
            max_path_length=args.rollout.max_new_tokens,
        )

    @contextmanager
    def awake(self) -> Iterator[None]:
        """While inside, engines that sleep (--vllm.enable_sleep) stay awake: what they read of a question and its paths to
        score them need not be read again to continue them."""
        with ExitStack() as engines:
            with self.clock("rollout"):
                engines.enter_context(self.generator)
            yield
            with self.clock("rollout"):
                engines.close()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While inside, seconds and counts are kept apart from those of a step in progress; so are failed rewards, so that a
        run resumed from this step counts the same."""
        of_step = self.clock, self.counts
        self.clock, self.counts = PhaseClock(), Counter()
        try:
            with self.scorer.apart() if self.scorer is not None else nullcontext():
                yield
        finally:
            self.clock, self.counts = of_step

    def roll_out(self, asked: Sequence[Asked], step: int, enough: int | None = None) -> list[Group]:
        """The groups of one training step, in the order of ``asked``; scored unless a reward model does that later.

        ``enough``: how many of them are done; the others wait, without scores (``--rpo.tail``). None: all are.
        """
        stored = self.stored([one.question.question_id for one in asked])
        work = Work(groups=[], sampling=self.sampling, step=step, drafts=self.drafts(stored))
        for one, known in zip(asked, stored, strict=True):
            self._begin(work, one, known)
        if enough is None:
            return self._generate_and_score(work)
        work.enough = enough  # which groups wait is known when all have stopped
        groups = self._generate(work)
        done = iter(self.score([group for group in groups if not group.waits]))
        return [group if group.waits else next(done) for group in groups]

    def stored(self, question_ids: list[str]) -> list[Stored]:
        """What the cache holds for each question; all visits only if the method reads them."""
        if self.cache is None:
            raise ValueError("a training step's rollout needs the path cache")
        with self.clock("cache"):
            paths = self.cache.slots(question_ids)
            if self.config.method.reads_history:
                visits = self.cache.all_visits(question_ids)
            else:
                visits = {name: (visit,) for name, visit in self.cache.visits(question_ids).items()}
        return [Stored(paths.get(name, {}), visits.get(name, ())) for name in question_ids]

    def _begin(self, work: Work, one: Asked, known: Stored) -> None:
        """Add a question's group to the work: from where it stopped, from its stored paths, or from the bare question."""
        question, samples = one.question, one.begun
        if not samples:
            paths = () if one.bare else choose_paths(self.config.method, known, self.sampling.n_samples)
            cut = Cut(paths, keyed_generator(self.seed, work.step, question.question_id, "cut"), known.visits)
            to_verify = bool(paths) and self.config.method.scores
            if to_verify:  # each stored path is scored once
                work.verify[len(work.groups)] = ToVerify(cut, list({path.slot: path for path in paths}.values()))
            samples = begin((Prefix(),) * self.sampling.n_samples if to_verify else self.prefixes(question, cut))
        n_before = count(samples) if one.reason == "unfinished" else 0  # of a step that has counted them
        work.groups.append(Group(question, samples, known.visits, one.reason, n_before=n_before, due=work.step))

    def _verified(self, question: Question, start: ToVerify, log_probs: list[LogProbs]) -> tuple[Sample, ...]:
        """The samples that continue, or are, what the policy accepts, given its log-probs of each distinct path.

        A path that fills --data.max_len is one token longer than an engine accepts. Its last token, which is always cut,
        gets probability 0.
        """
        now = {
            path.slot: scored + as_log_probs([-math.inf]) * (len(path) - len(scored))
            for path, scored in zip(start.distinct, log_probs, strict=True)
        }
        cut = replace(start.cut, log_probs=tuple(now[path.slot] for path in start.cut.paths))
        return tuple(whole(sample, self.gate.version) for sample in begin(self.prefixes(question, cut)))

    def prefixes(self, question: Question, cut: Cut) -> tuple[Prefix, ...]:
        """What each sample of a group starts from; the bare question if there are no paths."""
        if not cut.paths:
            return (Prefix(),) * self.sampling.n_samples
        return choose_prefixes(self.config.method, cut, self.max_path_length(question, self.sampling) - 1)

    def drafts(self, stored: Sequence[Stored]) -> list[list[bytes]]:
        """Every stored path of each question as a draft, the newest first; none with --rpo.drafts off."""
        if self.config.drafts.mode == "off":
            return [[] for _ in stored]
        newest_first = [sorted(known.paths.values(), key=lambda path: -path.step) for known in stored]
        return [[path.token_ids.tobytes() for path in paths] for paths in newest_first]

    def engine_metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """What the engines counted in a step with these groups."""
        counts, self.counts = self.counts, Counter()
        found = {}
        if self.config.drafts.mode != "off":
            found["rpo/drafts/tokens"] = counts["drafted"] / sum(len(group.samples) for group in groups)
            found["rpo/drafts/accepted"] = counts["accepted"] / max(1, counts["drafted"])
        if self.config.drafts.mode == "auto":
            found["rpo/drafts/seconds_saved"] = counts["saved"] / len(self.generator.engines)
        if counts["read"]:
            found["rpo/verify/gap"] = counts["gap"] / counts["read"]
            found["rpo/verify/noise"] = counts["noise"] / counts["read"]
        return found

    def sample_bare(
        self,
        questions: Sequence[Question],
        sampling: Sampling,
        step: int,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> list[Group]:
        """Scored groups from the bare question, for evaluation and for the initial cache."""
        return self.sample_from(questions, [(Prefix(),) * sampling.n_samples] * len(questions), sampling, step, on_group)

    def sample_from(
        self,
        questions: Sequence[Question],
        prefixes: Sequence[tuple[Prefix, ...]],
        sampling: Sampling,
        step: int,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> list[Group]:
        """Scored groups from given prefixes, one prefix per sample; ``sampling.n_samples`` is ignored."""
        pairs = zip(questions, prefixes, strict=True)
        work = Work(groups=[Group(q, begin(own)) for q, own in pairs], sampling=sampling, step=step)
        work.on_group = lambda i: on_group(work.groups[i])
        return self._generate_and_score(work)

    def max_path_length(self, question: Question, sampling: Sampling) -> int:
        """The longest path of this question in tokens: max_new_tokens, or less if max_len leaves less after the prompt."""
        room = self.max_len - len(question.prompt_ids)
        return min(room, sampling.max_path_length or room)

    def fits(self, question: Question, begun: Sequence[Sample]) -> bool:
        """Whether samples begun under other options may be continued: as many as a group has now, with room for a token."""
        longest = self.max_path_length(question, self.sampling)
        going_on = [s for s in begun if s.finish_reason == "unfinished"]
        return len(begun) == self.sampling.n_samples and all(
            s.path_length < longest and self._room(question, s, self.sampling) > 0 for s in going_on
        )

    def score(self, groups: list[Group]) -> list[Group]:
        """Fill in scores and shaped rewards, unless a reward model (no scorer) does that later."""
        if self.scorer is None:
            return groups
        with self.clock("reward"):
            results = iter(self.scorer.score([r for group in groups for r in self._reward_requests(group)]))
        return [self._scored(group, [next(results) for _ in group.samples]) for group in groups]

    def _scored(self, group: Group, own: Sequence[RewardResult]) -> Group:
        rewards, scores = [r.reward for r in own], [r.score for r in own]
        shaped = shape_rewards(rewards, [s.path_length for s in group.samples], self.config.shaping, scores)
        samples = [
            replace(s, score=r.score, shaped_reward=x, reward_logs=r.extra)
            for s, r, x in zip(group.samples, own, shaped, strict=True)
        ]
        return replace(group, samples=tuple(samples))

    def _generate_and_score(self, work: Work) -> list[Group]:
        """``_generate``, then ``score``; each group's rewards are computed while others are generated."""
        if self.scorer is None:
            return self._generate(work)
        order, on_group = [], work.on_group

        def generated(i: int) -> None:
            order.append(i)
            scoring.add(self._reward_requests(work.groups[i]))
            on_group(i)

        work.on_group = generated
        with self.scorer.begin(sum(len(group.samples) for group in work.groups)) as scoring:
            groups = self._generate(work)
            with self.clock("reward"):
                results = iter(scoring.finish())
        own = {i: [next(results) for _ in groups[i].samples] for i in order}
        return [self._scored(group, own[i]) for i, group in enumerate(groups)]

    def _generate(self, work: Work) -> list[Group]:
        """Do the work; with ``enough``, the groups that wait are cut."""
        if work.step > 0:
            self.work = work
        groups, unknown, answers = work.groups, set(work.verify), dict[int, GeneratedGroup]()

        def ask(i: int) -> AnyRequest:
            if i not in unknown:
                return self._group_request(work, i)
            paths = [self._to_score(groups[i].question, path) for path in work.verify[i].distinct]
            return VerifyRequest(paths, len(groups[i].samples), partial(verified, i))

        def verified(i: int, log_probs: list[LogProbs]) -> GroupRequest:
            unknown.remove(i)
            groups[i] = replace(groups[i], samples=self._verified(groups[i].question, work.verify[i], log_probs))
            if not unknown:
                phase.close()
                phase.enter_context(self.clock("rollout"))
            return self._group_request(work, i)

        def stopped(i: int, answer: GeneratedGroup | None) -> Callable[[], AnyRequest]:
            phase.close()  # a pause is taken off the seconds of "rollout"
            phase.enter_context(self.clock("rollout"))
            if answer is not None:
                self._add(work, i, answer)
            return partial(ask, i)

        bar = tqdm(total=len(groups), desc="Generating", unit="group", delay=5, mininterval=5)
        with ExitStack() as phase, bar, self.generator as generator:
            phase.enter_context(self.clock("verify" if unknown else "rollout"))
            requests = [ask(i) for i in range(len(groups))]
            gate = self.gate if work.step > 0 else None  # all else runs while training stands still
            for i, answer in generator.generate(requests, work.enough, gate, stopped):
                answers[i] = answer
                if work.enough is None:
                    self._add(work, i, answer)
                bar.update()
                work.on_group(i)
        if work.enough is not None:
            limit, waiting = tail([answers[i].longest for i in range(len(groups))], work.enough)
            for i, waits in enumerate(waiting):
                samples = [shortened(new, limit) for new in answers[i].samples] if waits else answers[i].samples
                self._add(work, i, replace(answers[i], samples=samples))
                groups[i] = replace(groups[i], waits=waits)
        return list(groups)

    def _add(self, work: Work, i: int, answer: GeneratedGroup) -> None:
        """Add an engine's answer to its group."""
        self.counts.update(answer.counts)
        samples = go_on(work.groups[i].samples, answer.samples, self.gate.version)
        work.groups[i] = replace(work.groups[i], samples=samples)

    def _group_request(self, work: Work, i: int) -> GroupRequest:
        question = work.groups[i].question
        requests = self._requests(question, work.groups[i].samples, work.sampling, work.step)
        drafts = work.drafts[i] if work.drafts else ()
        return GroupRequest(requests, len(question.prompt_ids), drafts, self.reads and work.step != EVAL_STEP)

    def _requests(self, question: Question, begun: tuple[Sample, ...], sampling: Sampling, step: int) -> list[Request]:
        return [
            Request(
                token_ids=question.prompt_ids + s.prefix.token_ids + s.response_ids,
                max_tokens=self._room(question, s, sampling),
                seed=request_seed(self.seed, step, question.question_id, i, len(s.response_ids)),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                rejected=None if s.response_ids else s.prefix.rejected,
            )
            for i, s in enumerate(begun)
            if s.finish_reason == "unfinished"
        ]

    def _room(self, question: Question, sample: Sample, sampling: Sampling) -> int:
        """How many tokens a sample may still generate."""
        prefix, longest = sample.prefix, self.max_path_length(question, sampling)
        budget = max(1, longest - len(prefix))
        if prefix.path is not None:  # the method's business is what goes on from a stored path
            most, budget = budget, self.config.method.budget(len(prefix), prefix.cut, budget)
            if not 1 <= budget <= most:
                raise ValueError(f"method {self.config.method.name}: a budget of {budget} tokens, expected 1 to {most}")
        return budget - len(sample.response_ids)

    def _to_score(self, question: Question, path: Path) -> ScoreRequest:
        token_ids = path.token_ids[: self.max_len - 1 - len(question.prompt_ids)]
        return ScoreRequest(question.prompt_ids + token_ids, len(token_ids))

    def _reward_requests(self, group: Group) -> list[RewardRequest]:
        """As upstream, the query is prompt and path decoded together, with special tokens."""
        prompt = group.question.prompt_ids.tolist()
        paths = [(s.prefix.token_ids + s.response_ids).tolist() for s in group.samples]
        queries = self.tokenizer.batch_decode([prompt + path for path in paths], skip_special_tokens=False)
        responses = self.tokenizer.batch_decode(paths, skip_special_tokens=True)
        question = group.question
        return [
            RewardRequest(question.question_id, query, question.prompt, question.label, response, len(path))
            for query, response, path in zip(queries, responses, paths, strict=True)
        ]
