"""Real databases: SQLite files in a temporary folder, and a PostgreSQL server started by the tests; small builders.

A test of the fixtures ``url``, ``cache`` or ``reopen`` runs on both, unless it asks for SQLite's ``file``.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.session import place
from openrlhf_rpo.platform.cpu import free_port
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit

REPOSITORY = File(__file__).parents[3]
FINGERPRINTS = {"data": "d1", "tokenizer": "t1"}


def build_path(question_id: str = "q", token_ids: tuple[int, ...] = (1, 2, 3), **fields: Any) -> Path:
    values = {"log_probs": (-1.0,) * len(token_ids), "finish_reason": "stop", "score": 1.0, "reward": 0.75} | fields
    return Path(question_id=question_id, token_ids=token_ids, **values)


def build_visit(question_id: str, step: int, **fields: Any) -> Visit:
    values = {"cut": 2, "prefix_length": 1, "shortest_path": 3, "n_samples": 8, "n_rewarded": 5, "outcome": "best"}
    return Visit(question_id=question_id, step=step, **(values | fields))


def commit_paths(cache: PathCache, step: int, changed: dict[str, tuple[int, ...] | None]) -> None:
    """Commit a step that visits the questions of ``changed``: new token ids, or None to keep the path."""
    decisions = [
        CacheDecision(None if ids is None else build_path(question, ids, step=step), build_visit(question, step))
        for question, ids in changed.items()
    ]
    cache.commit_step(StepRecord(step, 0, 8 * step, {"reward": step / 2}), decisions)


@pytest.fixture
def path() -> Callable[..., Path]:
    return build_path


@pytest.fixture
def visit() -> Callable[..., Visit]:
    return build_visit


@pytest.fixture
def commit() -> Callable[..., None]:
    return commit_paths


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", ["sqlite"] if "file" in metafunc.fixturenames else ["sqlite", "postgresql"])


def postgres_programs() -> File | None:
    """The folder of Debian's newest server (a client alone has such a folder, too), or of the one on the PATH."""
    folders = [initdb.parent for initdb in File("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if folders:
        return max(folders, key=lambda folder: int(folder.parent.name))
    return File(os.path.realpath(on_path)).parent if on_path else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server of its own, on a socket in a temporary folder. The server refuses to run as root. On its TCP port
    (``SHOW port``) it asks for a password.

    Skipped where there is none, but never where CI is set.
    """
    programs = postgres_programs()
    if programs is None:
        message = "no PostgreSQL server on this machine: apt-get install postgresql (.ci/run installs it)"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    folder = tempfile.mkdtemp(prefix="rpo_pg_")
    identity: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    if identity:
        shutil.chown(folder, "postgres", "postgres")
    data, log = f"{folder}/data", File(f"{folder}/log")
    options = {"cwd": folder, "stdout": log.open("w"), "stderr": subprocess.STDOUT} | identity
    initdb = [programs / "initdb", "-D", data, "-U", "rpo", "-E", "UTF8", "--data-checksums", "--no-sync"]
    initdb += ["--auth-local=trust", "--auth-host=scram-sha-256"]
    subprocess.run(initdb, check=True, timeout=300, **options)
    port = free_port()
    settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}"]
    settings += ["fsync=off", "max_connections=30"]
    command = [programs / "postgres", "-D", data, *(part for setting in settings for part in ("-c", setting))]
    server = subprocess.Popen(command, **options)
    try:
        url = f"postgresql+psycopg://rpo@/postgres?port={port}&host={folder}"
        wait_for_server(url, server)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        options["stdout"].close()
        shutil.rmtree(folder)


def wait_for_server(url: str, server: subprocess.Popen) -> None:
    engine = create_engine(url)
    for _ in range(600):
        try:
            engine.connect().close()
            break
        except OperationalError:
            assert server.poll() is None, "the PostgreSQL server ended"
            time.sleep(0.1)
    else:
        raise TimeoutError("the PostgreSQL server did not start in a minute")
    engine.dispose()


@pytest.fixture
def file(tmp_path: File) -> File:
    return tmp_path / "run" / "rpo_cache.db"


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Creates empty schemas and returns their URLs."""

    def make() -> str:
        server = request.getfixturevalue("postgres_server")
        schema = f"cache_{uuid.uuid4().hex}"
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        engine.dispose()
        return f"{server}&options=-csearch_path%3D{schema}"

    return make


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, postgres_url: Callable[[], str]) -> str:
    """Where no cache exists yet: a missing file, or a schema without tables."""
    return f"sqlite:///{request.getfixturevalue('file')}" if kind == "sqlite" else postgres_url()


@pytest.fixture
def where(url: str) -> str:
    """The cache's name in messages."""
    return place(url)[0]


@pytest.fixture
def reopen(url: str) -> Callable[..., PathCache]:
    """Opens the cache of this test with the fingerprints of its run."""

    def open_cache(**fields: Any) -> PathCache:
        return PathCache.open(url, FINGERPRINTS, **fields)

    return open_cache


@pytest.fixture
def child() -> Callable[..., subprocess.Popen]:
    """Starts ``crash_child.py URL MODE``."""

    def start(url: str, mode: str, **options: Any) -> subprocess.Popen:
        command = [sys.executable, str(File(__file__).with_name("crash_child.py")), url, mode]
        return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, text=True, **options)

    return start


@pytest.fixture
def cache(reopen: Callable[..., PathCache]) -> Iterator[PathCache]:
    """C(0): question q has the path 1 2 3, question r the path 4 5."""
    with reopen() as opened:
        opened.commit_initial([build_path("q", (1, 2, 3)), build_path("r", (4, 5))])
        opened.mark_initialised()
        yield opened
