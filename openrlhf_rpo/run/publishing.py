"""Complete checkpoints while training goes on: copy the cache, and move everything into place.

The copy is of the cache as it was when the training actors had written the checkpoint, whatever is committed meanwhile. A
failure in the background ends the run at the next checkpoint or at its end. A run killed meanwhile resumes from the previous
checkpoint.
"""

from concurrent.futures import Future, ThreadPoolExecutor

from openrlhf_rpo.cache.session import Snapshot
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import LARGE_CACHE, VERSIONS_OF_A_LARGE_CACHE
from openrlhf_rpo.run.checkpoints import Checkpoints, step_of

PRUNE_EVERY = 10
"""Steps after which replaced paths are deleted where no checkpoint is written."""


class Publisher:
    """Publishes one checkpoint at a time, in a thread. ``keep_versions``: of ``--rpo.cache``.

    As a context it waits for the last one; an error inside wins over one of its own.
    """

    def __init__(self, checkpoints: Checkpoints, cache: PathCache, keep_versions: int | None) -> None:
        self.checkpoints = checkpoints
        self.cache = cache
        self.keep_versions = keep_versions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[str, Future[None]] | None = None

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._thread.shutdown()
        if error is None:
            self.wait()

    def begin(self, tag: str) -> bool:
        """Publish what the training actors wrote as checkpoint ``tag``; False if they wrote nothing."""
        self.wait()
        if not self.checkpoints.is_staged(tag):
            return False
        self._pending = tag, self._thread.submit(self._publish, tag, self.cache.snapshot())
        return True

    def wait(self) -> None:
        """Wait for the checkpoint that was begun, before another is written. Raises its error."""
        if self._pending is None:
            return
        (tag, published), self._pending = self._pending, None
        published.result()
        self.prune(step_of(tag))

    def _publish(self, tag: str, snapshot: Snapshot) -> None:
        with snapshot:
            self.checkpoints.publish(tag, snapshot.copy_to)
        print(f"Checkpoint {tag} is complete", flush=True)

    def prune(self, step: int) -> None:
        """Delete paths replaced long before the committed ``step`` (``--rpo.cache.keep_versions``).

        Those that a checkpoint may roll back to stay.
        """
        keep = self.keep_versions
        if keep is None and self.cache.size() > LARGE_CACHE:
            keep = VERSIONS_OF_A_LARGE_CACHE
        if keep is not None:
            begun = {step_of(self._pending[0])} if self._pending else set()
            self.cache.prune(step - keep, self.checkpoints.steps() | begun)
