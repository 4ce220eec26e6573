"""Alembic's entry point: migrates over the connection of a starting run, or by hand (see alembic.ini)."""

import logging
import os

from alembic import context
from sqlalchemy import Connection

from openrlhf_rpo.cache.models import Base
from openrlhf_rpo.cache.session import make_engine, writer_lock


def hand_url() -> str:
    default = os.environ.get("RPO_CACHE_URL", "sqlite:///rpo_cache.db")
    return context.get_x_argument(as_dictionary=True).get("url", default)


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


def migrate_by_hand() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.INFO)
    with writer_lock(hand_url()), make_engine(hand_url()).begin() as connection:
        migrate(connection)


if "connection" in context.config.attributes:
    migrate(context.config.attributes["connection"])
else:
    migrate_by_hand()
