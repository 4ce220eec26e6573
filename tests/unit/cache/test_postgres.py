"""PostgreSQL only: the lock's holder, and a server that is missing or goes away."""

import os
import pathlib
import signal
import subprocess
import time
import uuid

import pytest
from sqlalchemy import create_engine, make_url, text

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.errors import CacheError, CacheLocked, CacheUnwritable
from openrlhf_rpo.cache.postgres import postgres_engine


@pytest.fixture
def url(postgres_url) -> str:
    return postgres_url()


def test_a_second_writer_is_refused_and_the_first_is_named(url, child) -> None:
    first = child(url, "hold", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout.readline() == "open\n"
    with pytest.raises(CacheLocked, match=f"in use by process {first.pid} on "):
        PathCache.open(url, {})
    with PathCache.open_to_read(url) as reader:
        assert reader.latest_step == 1
    first.send_signal(signal.SIGKILL)
    first.communicate()
    PathCache.open(url, {}).close()


def test_a_closed_cache_can_be_opened_again_at_once(url) -> None:
    for _ in range(20):
        PathCache.open(url, {}).close()


def test_a_schema_that_does_not_exist_is_named(url) -> None:
    place, _, _ = url.partition("&options")
    nowhere = f"{place}&options=-csearch_path%3Dnowhere"
    with pytest.raises(CacheUnwritable, match="there is no schema of the search path nowhere. Make it"):
        PathCache.open(nowhere, {})


def test_two_schemas_of_one_database_are_two_caches(url, postgres_url) -> None:
    with PathCache.open(url, {}) as one, PathCache.open(postgres_url(), {}) as other:
        one.mark_initialised()
        assert (one.initialised, other.initialised) == (True, False)


def test_a_later_schema_of_the_search_path_is_another_cache(url, postgres_url) -> None:
    both = f"{postgres_url()}%2C{url.rpartition('%3D')[2]}"
    with PathCache.open(url, {}) as later:
        later.mark_initialised()
        assert PathCache.is_missing(both)
        with PathCache.open(both, {}) as first:
            assert not first.initialised
    assert not PathCache.is_missing(both)


def test_connections_stay_alive_through_a_long_step(url) -> None:
    engine = postgres_engine(make_url(url))
    with engine.connect() as connection:
        asked = connection.connection.driver_connection.info.get_parameters()
    engine.dispose()
    assert (asked["keepalives_idle"], asked["keepalives_interval"], asked["keepalives_count"]) == ("60", "10", "6")


def test_the_server_too_looks_whether_the_writer_is_there_and_ends_no_idle_connection(postgres_server, monkeypatch) -> None:
    """It keeps the lock of a lost node until it knows. A socket has no keepalives, so this goes over TCP."""
    guest = f"guest_{uuid.uuid4().hex}"
    engine = create_engine(postgres_server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {guest} LOGIN PASSWORD 'the word'")
        connection.exec_driver_sql(f"ALTER ROLE {guest} SET idle_session_timeout TO '9s'")
        port = connection.exec_driver_sql("SHOW port").scalar()
    engine.dispose()
    monkeypatch.setenv("PGPASSWORD", "the word")
    engine = postgres_engine(make_url(f"postgresql+psycopg://{guest}@127.0.0.1:{port}/postgres"))
    with engine.connect() as connection:
        names = [*(f"tcp_keepalives_{name}" for name in ("idle", "interval", "count")), "idle_session_timeout"]
        settings = "SELECT setting FROM pg_settings WHERE name = :name"
        assert [connection.scalar(text(settings), {"name": name}) for name in names] == ["60", "10", "6", "0"]
    engine.dispose()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_reader_may_only_read_and_leaves_that_to_no_other_user_of_its_session(url, read_only) -> None:
    engine = postgres_engine(make_url(url), read_only)
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW transaction_read_only")) == ("on" if read_only else "off")
        assert connection.scalar(text("SHOW default_transaction_read_only")) == "off"
    engine.dispose()


@pytest.mark.parametrize("loss", ["another server process", "no lock"])
def test_a_writer_behind_a_transaction_pooler_stops(cache, commit, url, reopen, loss) -> None:
    """Whose every statement may go to another server process, which holds no lock or loses it to another client."""
    connection = cache._database._lock._connection
    if loss == "no lock":
        connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")
    else:
        connection.invalidate()
        connection.rollback()  # the next statement connects again
    with pytest.raises(CacheLocked, match="does not hold it, as behind a transaction pooler.* a direct or session-pooled"):
        commit(cache, 1, {"q": (9,)})
    cache.close()
    with reopen() as again:
        assert again.latest_step == 0


def test_a_writer_whose_connections_the_server_ended_stops_with_what_was_committed(cache, commit, url, reopen) -> None:
    commit(cache, 1, {"q": (9,)})
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        ours = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name")
        name = connection.scalar(text("SELECT :name"), {"name": f"process {os.getpid()} on {os.uname().nodename}"})
        assert connection.execute(ours, {"name": name}).all()
    engine.dispose()
    with pytest.raises(CacheLocked, match="the server ended the connection.*What was committed is whole; resume"):
        commit(cache, 2, {"q": (8,)})
    cache.close()
    with reopen() as again:
        assert tuple(again.paths(["q"])["q"].token_ids) == (9,)
        commit(again, 2, {"q": (8,)})


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    with pytest.raises(CacheUnwritable, match="Check that the server runs") as refusal:
        PathCache.open(f"postgresql+psycopg://rpo@/cache?host={tmp_path}", {})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("way", ["PGPASSWORD", "PGPASSFILE", "~/.pgpass"])
def test_a_password_comes_from_the_environment_or_a_file(url, postgres_server, tmp_path, monkeypatch, way) -> None:
    """The server asks this user for a password."""
    folder = postgres_server.partition("host=")[2]
    guest = f"guest_{uuid.uuid4().hex}"
    rules = pathlib.Path(folder, "data", "pg_hba.conf")
    before = rules.read_text()
    engine = create_engine(postgres_server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {guest} LOGIN SUPERUSER PASSWORD 'the word'")
        try:
            rules.write_text(f"local all {guest} scram-sha-256\n" + before)
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            time.sleep(0.5)
            as_guest = url.replace("rpo@", f"{guest}@")
            monkeypatch.setenv("HOME", str(tmp_path))
            with pytest.raises(CacheUnwritable, match="no password supplied"):
                PathCache.open(as_guest, {})
            file = tmp_path / ("word" if way == "PGPASSFILE" else ".pgpass")
            file.write_text(f"*:*:*:{guest}:the word\n")
            file.chmod(0o600)
            if way != "~/.pgpass":
                monkeypatch.setenv(way, "the word" if way == "PGPASSWORD" else str(file))
            if way == "PGPASSWORD":
                file.unlink()
            PathCache.open(as_guest, {}).close()
        finally:
            rules.write_text(before)
            connection.exec_driver_sql("SELECT pg_reload_conf()")
    engine.dispose()


def test_a_database_that_is_not_there_is_named(postgres_server) -> None:
    with pytest.raises(CacheUnwritable, match='database "nowhere" does not exist. Check.* that the database exists'):
        PathCache.open(postgres_server.replace("/postgres?", "/nowhere?"), {})


def test_where_there_is_no_cache_a_reader_makes_none(url) -> None:
    with pytest.raises(CacheError, match="holds no path cache"):
        PathCache.open_to_read(url)
    assert PathCache.is_missing(url)


def test_vacuum_and_prune_leave_what_is_kept(cache, commit) -> None:
    for step in (1, 2, 3):
        commit(cache, step, {"q": (step,)})
    kept = list(cache.iter_paths(2)), list(cache.iter_paths())
    assert cache.prune(2) == 2
    cache.vacuum()
    assert (list(cache.iter_paths(2)), list(cache.iter_paths())) == kept
    assert cache.verify() == []


def test_prune_keeps_the_steps_of_checkpoints(cache, commit) -> None:
    for step in range(1, 7):
        commit(cache, step, {"q": (step,)})
    assert cache.prune(5, (0, 3)) == 3  # the paths of steps 1, 2 and 4
    assert [path.step for path in cache.versions(["q"])["q"]] == [0, 3, 5, 6]
    assert cache.rollback(3) == 3
    assert tuple(cache.paths(["q"])["q"].token_ids) == (3,)
    assert cache.verify() == []


def test_vacuum_leaves_other_tables_of_the_database_alone(cache) -> None:
    place = "SELECT pg_relation_filepath('other')"
    with cache._database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE other (n int)")
        before = connection.exec_driver_sql(place).scalar()
    cache.vacuum()
    with cache._database.engine.begin() as connection:
        assert connection.exec_driver_sql(place).scalar() == before
        connection.exec_driver_sql("DROP TABLE other")


def test_the_order_of_replay_is_that_of_sqlite(url, tmp_path, path) -> None:
    """A run must not depend on how a database sorts text."""
    names = ["b", "B", "a", "_", "Ä", "a-1", "a1"]
    orders = []
    for place in (url, f"sqlite:///{tmp_path}/c.db"):
        with PathCache.open(place, {}) as cache:
            cache.commit_initial([path(name) for name in names])
            cache.mark_initialised()
            orders.append(
                (cache.least_recently_visited(9), cache.question_ids(), [p.question_id for p in cache.iter_paths()])
            )
    assert orders[0] == orders[1] == (sorted(names),) * 3
