"""A checksum for every row."""

import zlib
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from tqdm import tqdm

from openrlhf_rpo.cache.columns import BadValue

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEYS = {
    "runs": ["key"],
    "questions": ["question_id"],
    "paths": ["id"],
    "visits": ["question_id", "step"],
    "steps": ["step"],
    "evaluations": ["step"],
}
BATCH = 500


def upgrade() -> None:
    for table in KEYS:
        # With a default the column is added in place; without one SQLite would copy the table.
        op.add_column(table, sa.Column("checksum", sa.BigInteger(), nullable=False, server_default="0"))
    connection = op.get_bind()
    for name, keys in KEYS.items():
        table = sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False)
        fill(connection, table, keys)


def fill(connection: sa.Connection, table: sa.Table, keys: list[str]) -> None:
    names = sorted(column.name for column in table.columns if column.name != "checksum")
    heads = [
        # Of encoded bytes only the first five count: their version and checksum.
        sa.func.substr(column, 1, 5, type_=sa.LargeBinary()).label(column.name)
        if isinstance(column.type, sa.LargeBinary)
        else column
        for column in (table.columns[name] for name in names)
    ]
    key = {name: table.columns[name] for name in keys}
    change = table.update().where(*(column == sa.bindparam(f"key_{name}") for name, column in key.items()))
    change = change.values(checksum=sa.bindparam("new_checksum"))
    rows = connection.execute(sa.select(*heads).order_by(*key.values())).mappings()
    total = connection.scalar(sa.select(sa.func.count()).select_from(table))
    with tqdm(total=total, desc=f"Path cache: checksums of {table.name}", unit="row", delay=2) as bar:
        for rows_ in readable(rows.partitions(BATCH), table.name):
            connection.execute(
                change,
                [{"new_checksum": checksum(names, row)} | {f"key_{name}": row[name] for name in keys} for row in rows_],
            )
            bar.update(len(rows_))


def readable(batches, table: str):
    """The batches; damaged times, JSON and bytes raise BadValue."""
    try:
        yield from batches
    except (TypeError, ValueError, RecursionError) as error:  # from a column type that cannot convert a value
        raise BadValue(f"table {table} cannot be read: {error}") from error


def checksum(names: list[str], row: sa.RowMapping) -> int:
    return zlib.crc32(repr([(name, plain(row[name])) for name in names]).encode())


def plain(value):
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    return value


def downgrade() -> None:
    for table in KEYS:
        op.drop_column(table, "checksum")
