"""A checksum for every row."""

import contextlib
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
        fill(connection, name, keys)


@contextlib.contextmanager
def renewed(tables: dict[str, list[str]]):
    """Verifies the checksums of ``tables`` (name -> key) and, after their columns were changed, computes them anew.

    Raises BadValue for a row whose checksum differs: with a new one its damage would never be found.
    """
    connection = op.get_bind()
    for name, keys in tables.items():
        verify(connection, name, keys)
    yield
    for name, keys in tables.items():
        fill(connection, name, keys)


def verify(connection: sa.Connection, name: str, keys: list[str]) -> None:
    for rows in batches(connection, reflected(connection, name), keys):
        for row, found in rows:
            if found != row["checksum"]:
                where = ", ".join(f"{key} {row[key]!s:.80}" for key in keys)
                raise BadValue(f"table {name}, row {where}: its checksum differs")


def fill(connection: sa.Connection, name: str, keys: list[str]) -> None:
    table = reflected(connection, name)
    change = table.update().where(*(table.columns[key] == sa.bindparam(f"key_{key}") for key in keys))
    change = change.values(checksum=sa.bindparam("new_checksum"))
    for rows in batches(connection, table, keys):
        connection.execute(
            change, [{"new_checksum": found} | {f"key_{key}": row[key] for key in keys} for row, found in rows]
        )


def reflected(connection: sa.Connection, name: str) -> sa.Table:
    return sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False)


def batches(connection: sa.Connection, table: sa.Table, keys: list[str]):
    """The rows by key, each with the checksum of its other columns."""
    names = sorted(column.name for column in table.columns if column.name != "checksum")
    heads = [
        # Of encoded bytes only the first five count: their version and checksum.
        sa.func.substr(column, 1, 5, type_=sa.LargeBinary()).label(column.name)
        if isinstance(column.type, sa.LargeBinary)
        else column
        for column in table.columns
    ]
    rows = connection.execute(sa.select(*heads).order_by(*(table.columns[key] for key in keys))).mappings()
    total = connection.scalar(sa.select(sa.func.count()).select_from(table))
    with tqdm(total=total, desc=f"Path cache: checksums of {table.name}", unit="row", delay=2) as bar:
        for found in readable(rows.partitions(BATCH), table.name):
            yield [(row, checksum(names, row)) for row in found]
            bar.update(len(found))


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
