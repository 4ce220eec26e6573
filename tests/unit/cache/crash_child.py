"""A process that dies while committing steps. Run as: crash_child.py URL MODE"""

import os
import resource
import signal
import sys

from sqlalchemy import event

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit


def commit(cache: PathCache, step: int, n_tokens: int = 1) -> None:
    path = Path("q", (step,) * n_tokens, None, "stop", 1.0, 1.0, step=step)
    cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(path, Visit("q", step, 0, 0, 1, 8, 8, "best"))])


def die_in_the_statement_with(cache: PathCache, word: str) -> None:
    def die(_connection, _cursor, statement, *_rest):
        if word in statement:
            os._exit(9)

    event.listen(cache._database.engine, "after_cursor_execute", die)


def main(url: str, mode: str) -> None:
    cache = PathCache.open(url, {})
    cache.mark_initialised()
    commit(cache, 1)
    if mode == "killed after the commit":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "disk full":
        limit = 300_000  # bytes in any one file
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            for step in range(2, 1000):
                path = Path("q", tuple(range(step, step + 5000)), None, "stop", 1.0, 1.0, step=step)
                visit = Visit("q", step, 0, 0, 1, 8, 8, "best")
                cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(path, visit)])
        except CacheError as error:
            print(type(error).__name__, step, error)
            print("latest", cache.latest_step)
    elif mode == "hold":
        print("open", flush=True)
        sys.stdin.read()
    else:
        die_in_the_statement_with(cache, mode)
        commit(cache, 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
