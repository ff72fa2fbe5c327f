"""Rows of a moment as Delta tables, typed as those of `to = "table"` are. Needs no Spark."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from penstock import extjson
from penstock.audit.fold import Table, whole_rows
from penstock.errors import AuditError
from penstock.proxies import for_delta
from penstock.spark.config import folder_of
from penstock.spark.table.arrow import arrow
from penstock.spark.table.decode import decode_documents
from penstock.spark.table.placing import place
from penstock.spark.table.plan import Misfit
from penstock.spark.table.statistics import STATISTICS, statistics_of

_WRITER: Final = WriterProperties(compression="ZSTD", compression_level=1)
_CANONICAL: Final = json_util.CANONICAL_JSON_OPTIONS


def write_state(
    path: str, source: str, tables: Sequence[Table], *, at: int
) -> list[tuple[str, int]]:
    """Write each table's rows as a Delta table that was not there; returns names and rows.

    One table is at `path`; of several, each is in a folder below. A table without rows is not
    written: its columns are not known. Rows of which a part is not known are left out. Raises
    AuditError where a table is there already, or a value fits no column: then nothing of that table
    was written.
    """
    written: list[tuple[str, int]] = []
    root = path.rstrip("/")
    for table in tables:
        name = ".".join(table.name)
        where = root if len(tables) == 1 else f"{root}/{folder_of(name)}"
        written.append((name, _write(where, source, table, at)))
    return written


def _write(path: str, source: str, table: Table, at: int) -> int:
    name = ".".join(table.name)
    storage = for_delta({})
    if DeltaTable.is_deltatable(path, storage_options=storage):
        raise AuditError(
            f"{path} is a Delta table already. Nothing of it was changed. Name another."
        )
    documents = [
        {column: extended_json(value) for column, value in row.values.items()}
        for _, row in whole_rows(table)
        for _ in range(row.times)
    ]
    if not documents:
        return 0
    # As it is written: what the table's engine reads are the types of a JSON library.
    plain: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(documents))
    order = np.arange(len(plain), dtype=np.int64)
    placed = place(arrow.schema([]), decode_documents(plain), order)
    if placed.misfits:
        raise AuditError(_misfits(name, list(placed.misfits.values())))
    said = {"penstock.source": source, "penstock.table": name, "penstock.at": str(at)}
    try:
        write_deltalake(
            path,
            arrow.Table.from_arrays(placed.columns, schema=placed.schema),
            mode="error",
            name=name,
            storage_options=storage,
            configuration={STATISTICS: statistics_of(placed.schema)},
            writer_properties=_WRITER,
            commit_properties=CommitProperties(custom_metadata=said),
        )
    except DeltaError as error:
        raise AuditError(
            f"{name} cannot be written to {path} ({type(error).__name__}). It is not there, or as "
            f"it was."
        ) from error
    return len(plain)


def _misfits(name: str, misfits: list[Misfit]) -> str:
    reasons = sorted({f"{one.field}: {one.reason}" for one in misfits})
    return (
        f"{len(misfits)} rows of {name} fit no column of a Delta table ({'; '.join(reasons[:5])}). "
        f"Nothing of the table was written. Restore it to a server (--target), or leave it out."
    )


def extended_json(value: Any) -> Any:
    """A value of a trail as the log has it: type-preserving Extended JSON."""
    if isinstance(value, dict):
        return {name: extended_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [extended_json(one) for one in value]
    if isinstance(value, Int64):
        return extjson.long(int(value))
    if isinstance(value, float):
        return extjson.exact(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, DatetimeMS):
        return extjson.date(int(value))
    if isinstance(value, Decimal128):
        return {"$numberDecimal": str(value)}
    if type(value) is bytes:
        return extjson.binary(value)
    return json_util.default(value, _CANONICAL)
