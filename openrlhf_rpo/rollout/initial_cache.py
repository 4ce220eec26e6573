"""The initial cache C(0): empty, one sampled path per question, or imported paths.

Every batch is committed when it is finished, so an interrupted initialization continues where it stopped.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tqdm import tqdm

from openrlhf_rpo.algo.methods.decide import score_and_reward
from openrlhf_rpo.algo.parts import extended
from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.exchange.sources import Source
from openrlhf_rpo.rollout.imported_paths import import_paths
from openrlhf_rpo.rollout.rollout import EVAL_STEP, Rollout, Sampling
from openrlhf_rpo.types import Group, Path, Question

_BATCH = 256  # questions per engine between two commits, each of which waits for the longest sample
_ROUNDS = 3  # of sampling, for questions whose sample may not enter


def fill_initial_cache(
    cache: PathCache, rollout: Rollout, questions: Sequence[Question], config: RPOConfig, source: Callable[[], Source]
) -> None:
    """Fill the cache as ``--rpo.init.mode`` says, unless that is done. ``source`` opens the paths to import."""
    if cache.initialised:
        return
    if config.init.mode == "bulk":
        sample_paths(cache, rollout, questions, config)
    elif config.init.mode == "import":
        print(import_paths(cache, rollout, questions, source(), config), flush=True)
    cache.mark_initialised()


def sample_paths(cache: PathCache, rollout: Rollout, questions: Sequence[Question], config: RPOConfig) -> None:
    """One path per question from the initial policy (paper, eq. 1); wrong ones that may not enter are sampled again."""
    sampling = replace(rollout.sampling, n_samples=1)
    size = _BATCH * len(rollout.generator.engines)
    first, passed = cache.initial_reached  # where an interrupted initialization stopped
    for attempt in range(first, _ROUNDS):
        done = set(cache.question_ids())
        pending = [(i, q) for i, q in enumerate(questions) if i >= passed and q.question_id not in done]
        passed = 0
        with rollout.awake(), tqdm(total=len(pending), desc=f"Initial cache, round {attempt + 1}", unit="question") as bar:
            for start in range(0, len(pending), size):
                places, batch = zip(*pending[start : start + size], strict=True)
                paths, tokens = sample_batch(rollout, batch, sampling, attempt, config.method.admits_wrong, bar)
                cache.commit_initial(paths, tokens, (attempt, places[-1] + 1))


def sample_batch(
    rollout: Rollout, questions: Sequence[Question], sampling: Sampling, attempt: int, admits_wrong: bool, bar: tqdm
) -> tuple[list[Path], int]:
    """The paths that may enter the cache, and the number of tokens sampled in all; one sample per question."""
    started, tokens = time.perf_counter(), 0

    def progress(group: Group) -> None:
        nonlocal tokens
        tokens += sum(len(s.response_ids) for s in group.samples)
        bar.update()
        bar.set_postfix_str(f"{tokens / (time.perf_counter() - started):,.0f} tokens/s")

    paths = []
    for group in rollout.sample_bare(questions, sampling, EVAL_STEP - 1 - attempt, progress):
        [sample] = group.samples
        score, reward = score_and_reward(sample)
        if admits_wrong or rewarded(score):
            ids, log_probs = sample.response_ids, sample.response_log_probs
            path = Path(group.question.question_id, ids, log_probs, sample.finish_reason, score, reward)
            paths.append(replace(path, parts=extended((), 0, len(ids))))
    return paths, tokens
