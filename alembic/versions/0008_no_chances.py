"""Without the chance that was estimated for questions asked for their signal."""

import sqlalchemy as sa
from alembic import context, op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEYS = {"visits": ["question_id", "step"], "unfinished": ["step", "question_id", "number"]}


def upgrade() -> None:
    with context.script.get_revision("0003").module.renewed(KEYS):
        for table in KEYS:
            with op.batch_alter_table(table) as columns:  # SQLite drops none before 3.35
                columns.drop_column("chance")


def downgrade() -> None:
    with context.script.get_revision("0003").module.renewed(KEYS):
        for table in KEYS:
            op.add_column(table, sa.Column("chance", sa.Double(), nullable=True))
