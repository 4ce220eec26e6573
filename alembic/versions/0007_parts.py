"""Which policy sampled which tokens of a path or unfinished sample; for which step a group waits, and why it was asked."""

import sqlalchemy as sa
from alembic import context, op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEYS = {"paths": ["id"], "unfinished": ["step", "question_id", "number"]}


def upgrade() -> None:
    for table in KEYS:
        op.add_column(table, sa.Column("parts", sa.String(), nullable=False, server_default=""))
    op.add_column("unfinished", sa.Column("due", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("unfinished", sa.Column("place", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("unfinished", sa.Column("asked", sa.String(), nullable=False, server_default="unfinished"))
    op.add_column("unfinished", sa.Column("chance", sa.Double(), nullable=True))
    op.execute("UPDATE unfinished SET due = step + 1")
    renew_checksums()


def downgrade() -> None:
    for name in ("chance", "asked", "place", "due", "parts"):
        op.drop_column("unfinished", name)
    op.drop_column("paths", "parts")
    renew_checksums()


def renew_checksums() -> None:
    connection, checksums = op.get_bind(), context.script.get_revision("0003").module
    for name, keys in KEYS.items():
        table = sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False)
        checksums.fill(connection, table, keys)
