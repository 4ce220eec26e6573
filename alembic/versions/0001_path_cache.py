"""The path cache: runs, paths, visits, steps, evaluations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "paths",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("question_id", sa.String(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("log_probs", sa.LargeBinary(), nullable=True),
        sa.Column("n_tokens", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=False),
        sa.Column("prefix_length", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["parent_id"], ["paths.id"]),
    )
    op.create_index("ix_paths_question_slot_step", "paths", ["question_id", "slot", "step"], unique=True)
    op.create_index("ix_paths_step", "paths", ["step"])
    op.create_index("ix_paths_parent_id", "paths", ["parent_id"])
    op.create_table(
        "visits",
        sa.Column("question_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cut", sa.Integer(), nullable=False),
        sa.Column("prefix_length", sa.Integer(), nullable=False),
        sa.Column("shortest_path", sa.Integer(), nullable=False),
        sa.Column("n_samples", sa.Integer(), nullable=False),
        sa.Column("n_rewarded", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("start_bare", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("question_id", "step"),
    )
    op.create_index("ix_visits_step", "visits", ["step"])
    op.create_table(
        "steps",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("episode", sa.Integer(), nullable=False),
        sa.Column("consumed", sa.Integer(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "evaluations",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )


def downgrade() -> None:
    for table in ("evaluations", "steps", "visits", "paths", "runs"):
        op.drop_table(table)
