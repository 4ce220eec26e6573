"""Which policy sampled which tokens of a path or unfinished sample; for which step a group waits, and why it was asked."""

import sqlalchemy as sa
from alembic import context, op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEYS = {"paths": ["id"], "unfinished": ["step", "question_id", "number"]}


def upgrade() -> None:
    with context.script.get_revision("0003").module.renewed(KEYS):
        for table in KEYS:
            op.add_column(table, sa.Column("parts", sa.String(), nullable=False, server_default=""))
        op.add_column("unfinished", sa.Column("due", sa.Integer(), nullable=False, server_default="0"))
        op.add_column("unfinished", sa.Column("place", sa.Integer(), nullable=False, server_default="0"))
        op.add_column("unfinished", sa.Column("asked", sa.String(), nullable=False, server_default="unfinished"))
        op.add_column("unfinished", sa.Column("chance", sa.Double(), nullable=True))
        op.execute("UPDATE unfinished SET due = step + 1")


def downgrade() -> None:
    with context.script.get_revision("0003").module.renewed(KEYS):
        for name in ("chance", "asked", "place", "due", "parts"):
            op.drop_column("unfinished", name)
        op.drop_column("paths", "parts")
