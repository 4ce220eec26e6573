import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as File

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from openrlhf_rpo.cache import PathCache, migrations
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheNewer, CacheOlder
from openrlhf_rpo.cache.models import Base
from openrlhf_rpo.cache.session import make_engine
from openrlhf_rpo.types import Begun, CacheDecision, Part, Prefix, Question, Sample, StepRecord

REPOSITORY = File(__file__).parents[3]


def run(*command: str, **environment: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    finished = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, env=environment, text=True, capture_output=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_migrations_build_exactly_the_models(cache, url) -> None:
    """From nothing. A new cache has the models' schema at once."""
    cache.close()
    downgrade(url, "base")
    migrate(url, command.upgrade, "head")
    engine = make_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def migrate(url: str, way: Callable[[Config, str], None], to: str) -> None:
    """To another schema, keeping rows."""
    engine, config = make_engine(url), migrations.config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        way(config, to)
    engine.dispose()


def downgrade(url: str, to: str) -> None:
    migrate(url, command.downgrade, to)


def revision(url: str) -> str:
    engine = make_engine(url)
    with engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    engine.dispose()
    return found


def test_a_cache_of_the_first_schema_is_upgraded_with_its_data(cache, url, commit, reopen) -> None:
    for step in range(1, 4):
        commit(cache, step, {"q": (step, 70_000), "r": None, "s": (step,)})
    cache.record_evaluation(2, {"pass1": 1 / 3, "missing": float("nan")})
    steps = [list(cache.iter_paths(step)) for step in range(4)]
    visits = {name: replace(visit, asked="unknown") for name, visit in cache.visits("qrs").items()}
    others = visits, cache.records(), cache.fingerprints, cache.least_recently_visited(9)
    cache.close()
    downgrade(url, "0001")
    assert revision(url) == "0001"
    with pytest.raises(CacheOlder, match="has schema revision 0001, this version of openrlhf_rpo reads 0008"):
        PathCache.open_to_read(url)
    with reopen() as upgraded:
        assert upgraded.verify() == []
        assert [list(upgraded.iter_paths(step)) for step in range(4)] == steps
        assert (
            upgraded.visits("qrs"),
            upgraded.records(),
            upgraded.fingerprints,
            upgraded.least_recently_visited(9),
        ) == others
        assert [step for step, _ in upgraded.evaluations()] == [2]
        commit(upgraded, 4, {"q": (4,)})
        assert upgraded.rollback(1) == 3
        assert list(upgraded.iter_paths()) == steps[1]
    assert revision(url) == "0008"


def test_an_older_copy_is_restored_into_a_server_too(cache, commit, postgres_url, tmp_path) -> None:
    commit(cache, 1, {"q": (5, 6)})
    copy = tmp_path / "copy.db"
    cache.copy_to(str(copy))
    downgrade(f"sqlite:///{copy}", "0006")
    before, target = copy.read_bytes(), postgres_url()
    PathCache.restore(str(copy), target)
    with PathCache.open_to_read(target) as restored:
        assert tuple(restored.paths(["q"])["q"].token_ids) == (5, 6) and restored.verify() == []
    assert copy.read_bytes() == before


def test_groups_that_waited_under_the_schema_before_parts_go_on_with_the_next_step(cache, url, path, visit, reopen) -> None:
    stored = path("q", step=1, parts=(Part(0, 2), Part(1, 1)))
    sample = Sample(Prefix(), (5, 6), (-0.5, -0.5), "unfinished", parts=(Part(1, 2),))
    own = replace(sample, prefix=Prefix((4,), (-1.0,), 1, cache.paths(["r"])["r"]))
    groups = [
        Begun("r", (sample, own), "replay", 4),
        Begun("q", (sample,), "turn", 3),
    ]
    cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(stored, visit("q", 1))])
    cache.commit_step(StepRecord(2, 0, 2, {}), [], groups)
    cache.close()
    downgrade(url, "0006")
    with pytest.raises(CacheOlder, match="has schema revision 0006"):
        PathCache.open_to_read(url)
    with reopen() as upgraded:
        assert upgraded.verify() == []
        without = replace(sample, parts=())
        assert upgraded.unfinished() == [
            Begun("q", (without,), "unfinished", 3),
            Begun("r", (without, replace(own, parts=())), "unfinished", 3),
        ]
        assert upgraded.paths(["q"])["q"] == replace(stored, path_id=3, parts=())
        upgraded.commit_step(StepRecord(3, 0, 3, {}), [], groups[:1])
        assert upgraded.unfinished()[0] == Begun("r", (sample, own), "replay", 4)


def test_why_a_former_version_asked_questions_is_kept_without_its_estimate(cache, url, visit, reopen) -> None:
    groups = [Begun(name, (Sample(Prefix(), (5,), (-0.5,), "unfinished"),), "turn", 2) for name in "qr"]
    visits = {name: visit(name, 1) for name in "qr"}
    cache.commit_step(StepRecord(1, 0, 2, {}), [CacheDecision(None, visits[name]) for name in "qr"], groups)
    cache.close()
    downgrade(url, "0007")
    checksums = ScriptDirectory.from_config(migrations.config()).get_revision("0003").module
    engine = make_engine(url)
    with engine.begin() as connection:
        for table, keys in {"visits": ["question_id", "step"], "unfinished": ["step", "question_id", "number"]}.items():
            connection.exec_driver_sql(f"UPDATE {table} SET asked = 'signal', chance = 0.5 WHERE question_id = 'q'")
            checksums.fill(connection, table, keys)
    engine.dispose()
    with reopen() as upgraded:
        assert upgraded.verify() == []
        assert upgraded.visits("qr") == visits | {"q": replace(visits["q"], asked="signal")}
        assert upgraded.unfinished() == [replace(groups[0], asked="signal"), groups[1]]


def test_a_damaged_cache_of_the_first_schema_gets_no_checksums(cache, url, file, path, commit, reopen) -> None:
    commit(cache, 1, {f"q{i}": tuple(range(900)) for i in range(40)})
    cache.close()
    downgrade(url, "0001")
    whole = bytearray(file.read_bytes())
    leaf = max(start for start in range(4096, len(whole), 4096) if whole[start] == 13)
    whole[leaf : leaf + 8] = b"\xff" * 8
    file.write_bytes(whole)
    with pytest.raises(CacheCorrupt, match=str(file)):
        reopen()
    assert revision(url) == "0001"


@pytest.mark.parametrize(
    ("of", "damage", "row"),
    [
        ("0007", "visits SET n_rewarded = 0", "table visits, row question_id q, step 1"),
        ("0007", "unfinished SET cut = 7", "table unfinished, row step 1, question_id q, number 0"),
        ("0006", "paths SET score = -1 WHERE id = 2", "table paths, row id 2"),
        ("0006", "unfinished SET cut = 7", "table unfinished, row step 1, question_id q, number 0"),
        ("0004", "visits SET slot = 1", "table visits, row question_id q, step 1"),
        ("0003", "visits SET n_rewarded = 0", "table visits, row question_id q, step 1"),
    ],
)
def test_a_damaged_row_gets_no_new_checksum(cache, url, visit, reopen, of, damage, row) -> None:
    group = Begun("q", (Sample(Prefix(), (5,), (-0.5,), "unfinished"),), "turn", 2)
    cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(None, visit("q", 1))], [group])
    cache.close()
    downgrade(url, of)
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {damage}")
    engine.dispose()
    with pytest.raises(CacheCorrupt, match=f"is damaged [(]{row}: its checksum differs[)], and was not upgraded"):
        reopen()
    assert revision(url) == of


def test_a_damaged_row_of_a_table_that_no_migration_changes_is_found_too(cache, url, reopen) -> None:
    cache.close()
    downgrade(url, "0007")
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE paths SET score = -1 WHERE id = 2")
    engine.dispose()
    with pytest.raises(CacheCorrupt, match=r"path 2 of .* is damaged \(its checksum differs\)\), and was not upgraded"):
        reopen()
    assert revision(url) == "0007"


def test_a_copy_of_the_first_schema_is_restored_and_upgraded(cache, url, file, reopen, tmp_path) -> None:
    copy = tmp_path / "copy.db"
    expected = list(cache.iter_paths())
    cache.copy_to(str(copy))
    cache.close()
    file.unlink()
    downgrade(f"sqlite:///{copy}", "0001")
    PathCache.restore(str(copy), url)
    with reopen() as restored:
        assert list(restored.iter_paths()) == expected


def test_a_schema_of_a_later_version_is_refused_with_both_revisions(cache, reopen, url, where) -> None:
    cache.close()
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    for attempt in (reopen, lambda: PathCache.open_to_read(url)):
        with pytest.raises(CacheNewer, match="revision 9999, this version of openrlhf_rpo knows up to 0008") as refusal:
            attempt()
        assert where in str(refusal.value)


def test_a_cache_of_the_first_schema_knows_no_question_until_it_is_described_again(cache, url, reopen) -> None:
    questions = [Question("q", "<user>1+1?", "2", "sums", "1+1?"), Question("r", "<user>2+2?", "4", "sums", "2+2?")]
    cache.describe(questions, "m")
    before = cache.paths(["q", "r"])
    cache.close()
    downgrade(url, "0001")
    assert revision(url) == "0001"
    with reopen() as again:
        assert again.paths(["q", "r"]) == before
        assert again.questions() == {} and again.model is None
        again.describe(questions, "m")
        assert len(again.questions()) == 2


def test_the_folder_alembic_does_not_hide_the_package_alembic_and_the_cache_is_light(url) -> None:
    heavy = "{'torch', 'ray', 'vllm', 'transformers'}"
    code = f"import sys, alembic.command, openrlhf_rpo.cache; print(sys.path[0] == '', {heavy} & sys.modules.keys())"
    assert run("-c", code) == "True set()\n"


def test_an_installed_package_finds_the_scripts_that_travel_with_it(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site-packages" / "openrlhf_rpo"
    shutil.copytree(REPOSITORY / "alembic", package / "_alembic")
    monkeypatch.setattr(migrations, "__file__", str(package / "cache" / "migrations.py"))
    assert migrations.scripts_folder() == package / "_alembic"
    with PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}) as cache:
        assert cache.latest_step == -1


def test_a_new_cache_that_dies_half_way_leaves_nothing(tmp_path) -> None:
    code = f"""
import os
from sqlalchemy import event, Engine
from openrlhf_rpo.cache import PathCache

@event.listens_for(Engine, "after_cursor_execute")
def die(_connection, _cursor, statement, *_rest):
    if "CREATE TABLE visits" in statement:
        os._exit(9)

PathCache.open("sqlite:///{tmp_path}/cache.db", {{}})
"""
    child = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=60)
    assert child.returncode == 9
    engine = create_engine(f"sqlite:///{tmp_path}/cache.db")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() == 0
    engine.dispose()
    PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}).close()


def test_an_upgrade_that_dies_in_its_last_migration_leaves_the_former_schema(tmp_path, visit) -> None:
    url = f"sqlite:///{tmp_path}/cache.db"
    with PathCache.open(url, {}) as cache:
        cache.mark_initialised()
        cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(None, visit("q", 1))])
        visits = cache.visits("q")
    downgrade(url, "0005")
    code = f"""
import os
from sqlalchemy import event, Engine
from openrlhf_rpo.cache import PathCache

@event.listens_for(Engine, "after_cursor_execute")
def die(connection, _cursor, statement, *_rest):
    if "RENAME TO unfinished" in statement and connection.engine.url.database:  # not the trial in memory
        os._exit(9)

PathCache.open("{url}", {{}})
"""
    child = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=60)
    assert child.returncode == 9 and revision(url) == "0005"
    with PathCache.open(url, {}) as upgraded:
        assert upgraded.verify() == [] and upgraded.visits("q") == visits
    assert revision(url) == "0008"
