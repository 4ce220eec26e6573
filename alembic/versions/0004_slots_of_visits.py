"""The slot of the path that a visit cut. For earlier visits, the slot of the question's own path."""

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with renewed_checksums():
        op.add_column("visits", sa.Column("slot", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    with renewed_checksums():
        op.drop_column("visits", "slot")


def renewed_checksums():
    checksums = context.script.get_revision("0003").module
    return checksums.renewed({"visits": checksums.KEYS["visits"]})
