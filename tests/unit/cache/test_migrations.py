import os
import shutil
import subprocess
import sys
from pathlib import Path as File

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from openrlhf_rpo.cache import PathCache, migrations
from openrlhf_rpo.cache.models import Base

REPOSITORY = File(__file__).parents[3]


def run(*command: str, **environment: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    finished = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, env=environment, text=True, capture_output=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_migrations_build_exactly_the_models(cache, url) -> None:
    with cache._database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_alembic_command_by_hand_makes_a_database_that_a_run_takes(url, file, reopen) -> None:
    file.parent.mkdir()
    run("-m", "alembic", "upgrade", "head", RPO_CACHE_URL=url)
    with reopen() as cache:
        assert cache.latest_step == -1
    run("-m", "alembic", "-x", f"url={url}", "downgrade", "base")
    with reopen() as cache:
        assert cache.latest_step == -1


def test_the_folder_alembic_does_not_hide_the_package_alembic_and_the_cache_is_light(url) -> None:
    heavy = "{'torch', 'ray', 'vllm', 'transformers', 'numpy'}"
    code = f"import sys, alembic.command, openrlhf_rpo.cache; print(sys.path[0] == '', {heavy} & sys.modules.keys())"
    assert run("-c", code) == "True set()\n"


def test_an_installed_package_finds_the_scripts_that_travel_with_it(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site-packages" / "openrlhf_rpo"
    shutil.copytree(REPOSITORY / "alembic", package / "_alembic")
    monkeypatch.setattr(migrations, "__file__", str(package / "cache" / "migrations.py"))
    assert migrations.scripts_folder() == package / "_alembic"
    with PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}) as cache:
        assert cache.latest_step == -1


def test_a_migration_that_dies_half_way_leaves_nothing(tmp_path) -> None:
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
