"""The groups that a step stopped before all their samples were done."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "unfinished",
        sa.Column("step", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("question_id", sa.String(), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("log_probs", sa.LargeBinary(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=False),
        sa.Column("prefix_length", sa.Integer(), nullable=False),
        sa.Column("prefix_log_probs", sa.LargeBinary(), nullable=True),
        sa.Column("cut", sa.Integer(), nullable=False),
        sa.Column("path_id", sa.Integer(), sa.ForeignKey("paths.id"), nullable=True, index=True),
        sa.Column("checksum", sa.BigInteger(), nullable=False, server_default="0"),
    )


def downgrade() -> None:
    op.drop_table("unfinished")
