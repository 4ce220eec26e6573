"""Alembic's entry point: migrates over the connection of a cache that is being opened (``cache/migrations.py``)."""

from alembic import context

from openrlhf_rpo.cache.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
