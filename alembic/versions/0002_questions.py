"""The questions' texts and labels, for people who read a cache. The model's name is a row of ``runs``."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "questions",
        sa.Column("question_id", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("prompt", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("datasource", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("question_id"),
    )


def downgrade() -> None:
    op.drop_table("questions")
    op.execute("DELETE FROM runs WHERE key = 'model'")
