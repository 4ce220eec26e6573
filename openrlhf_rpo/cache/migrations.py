"""Upgrading a database to this version's schema, with the scripts in the top-level ``alembic`` folder."""

import pathlib

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from openrlhf_rpo.cache.errors import CacheError, CacheNewer, CacheOlder


def scripts_folder() -> pathlib.Path:
    """``openrlhf_rpo/_alembic`` in a wheel, the top-level ``alembic`` in a checkout. Raises ``CacheError``."""
    package = pathlib.Path(__file__).resolve().parents[1]
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise CacheError(f"openrlhf_rpo in {package} was installed without its migration scripts. Install it again.")


def is_current(connection: Connection, where: str) -> bool:
    """Whether the schema is this version's. Raises ``CacheNewer`` for an unknown revision."""
    current, head = _revisions(connection, where, _config())
    return current == head


def upgrade(connection: Connection, where: str) -> None:
    """Upgrade to head in the transaction of ``connection``. ``where`` names the database in messages.

    Raises ``CacheNewer`` for an unknown revision, ``CacheError`` if the database has tables of something else.
    """
    config = _config()
    current, head = _revisions(connection, where, config)
    if current == head:
        return
    if current is None and set(inspect(connection).get_table_names()) - {"alembic_version"}:
        raise CacheError(f"{where} is not a path cache. Use another --rpo.cache.url.")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def check_revision(connection: Connection, where: str) -> None:
    """The check of a reader. Raises ``CacheOlder`` or ``CacheNewer``, and ``CacheError`` if there is no cache."""
    current, head = _revisions(connection, where, _config())
    if current is None:
        raise CacheError(f"{where} holds no path cache.")
    if current != head:
        raise CacheOlder(
            f"Path cache {where} has schema revision {current}, this version of openrlhf_rpo reads {head}. Resuming its "
            f"run upgrades it, and so does `alembic -x url=... upgrade head`."
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    return config


def _revisions(connection: Connection, where: str, config: Config) -> tuple[str | None, str | None]:
    """(database's, this version's). Raises ``CacheNewer`` if the database's is unknown."""
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise CacheNewer(
            f"Path cache {where} has schema revision {current}, this version of openrlhf_rpo knows up to {head}. "
            "Install the version that wrote it, or a later one."
        )
    return current, head
