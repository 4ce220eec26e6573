"""The slot of the path that a visit cut. For earlier visits, the slot of the question's own path."""

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("visits", sa.Column("slot", sa.Integer(), nullable=False, server_default="0"))
    renew_checksums()


def downgrade() -> None:
    op.drop_column("visits", "slot")
    renew_checksums()


def renew_checksums() -> None:
    connection = op.get_bind()
    visits = sa.Table("visits", sa.MetaData(), autoload_with=connection)
    checksums = context.script.get_revision("0003").module
    checksums.fill(connection, visits, checksums.KEYS["visits"])
