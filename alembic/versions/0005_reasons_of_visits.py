"""Why a visit's question was asked, and the tokens that the visit generated. 0 tokens: unknown, as the reason."""

import sqlalchemy as sa
from alembic import context, op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with context.script.get_revision("0004").module.renewed_checksums():
        op.add_column("visits", sa.Column("n_tokens", sa.Integer(), nullable=False, server_default="0"))
        op.add_column("visits", sa.Column("asked", sa.String(), nullable=False, server_default="unknown"))
        op.add_column("visits", sa.Column("chance", sa.Double(), nullable=True))


def downgrade() -> None:
    with context.script.get_revision("0004").module.renewed_checksums():
        for name in ("chance", "asked", "n_tokens"):
            op.drop_column("visits", name)
