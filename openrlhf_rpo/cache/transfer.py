"""Every row of one database into another, of whatever kind, a batch at a time."""

from sqlalchemy import Connection, insert, select

from openrlhf_rpo.cache.models import Base

_BATCH = 200


def copy_rows(source: Connection, target: Connection) -> None:
    """Fill the empty tables of ``target``; both have the schema of this version, and checksums travel unchanged."""
    for table in Base.metadata.sorted_tables:
        # Parents have smaller ids than their children.
        query = select(table).order_by(*table.primary_key.columns)
        with source.execution_options(yield_per=_BATCH).execute(query) as rows:
            for batch in rows.mappings().partitions():
                target.execute(insert(table), [dict(row) for row in batch])
