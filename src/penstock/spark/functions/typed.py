"""Documents of rows as a struct, by the same converter as those of `format("penstock")`."""

# Documents are what JSON says they are, and the stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import ConfigError, DocumentMisfitError
from penstock.spark.documents import MisfitError, converter_of
from penstock.spark.options import noted
from penstock.spark.table.arrow import arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnMisfit = Literal["halt", "record"]

_DOCUMENT: Final = "document"
_REJECTED: Final = "rejected"


def typed(
    rows: "DataFrame", schema: str | StructType | None, on_misfit: OnMisfit, *, sequence: str
) -> "DataFrame":
    """The same rows with `document` as `schema` says; as they are without one.

    `sequence` is the column by which an error names the row. Raises ConfigError for a type to which
    no document value maps.
    """
    if schema is None:
        return rows
    kind = _struct_of(rows.sparkSession, schema)
    converter_of(kind)  # a type without a mapping is refused now
    fields = [
        StructField(_DOCUMENT, kind) if field.name == _DOCUMENT else field for field in rows.schema
    ]
    if on_misfit == "record":
        fields.append(StructField(_REJECTED, StringType()))
    made = StructType(fields)
    work = partial(converted, kind=kind, schema=to_arrow_schema(made, timezone="UTC"), of=sequence)
    return rows.mapInArrow(work, made)


def _struct_of(spark: "SparkSession", schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return schema
    # Only Spark can parse what the user wrote.
    kind = spark.createDataFrame([], f"{_DOCUMENT} STRUCT<{schema}>").schema[_DOCUMENT].dataType
    if not isinstance(kind, StructType):
        raise ConfigError(f"schema is {schema!r}, which is no list of columns. Nothing was read.")
    return kind


def converted(
    batches: Iterable[pa.RecordBatch], *, kind: StructType, schema: pa.Schema, of: str
) -> Iterator[pa.RecordBatch]:
    """The rows in `schema`. Raises DocumentMisfitError where it has no column for what does not
    fit."""
    convert = converter_of(kind)
    for batch in batches:
        made: dict[str, list[Any]] = {_DOCUMENT: [], _REJECTED: []}
        texts: list[Any] = batch[_DOCUMENT].to_pylist()
        for row, text in enumerate(texts):
            document, refusal = None, None
            try:
                document = None if text is None else convert(msgspec.json.decode(text))
            except MisfitError as misfit:
                if _REJECTED not in schema.names:
                    with noted():
                        raise _misfit(batch[of][row].as_py(), misfit) from None
                refusal = _refusal(misfit, str(text))
            made[_DOCUMENT].append(document)
            made[_REJECTED].append(refusal)
        columns = [
            arrow.array(made[field.name], field.type)
            if field.name in made
            else batch[field.name].cast(field.type)
            for field in schema
        ]
        yield arrow.RecordBatch.from_arrays(columns, schema=schema)


def _misfit(sequence: int, misfit: MisfitError) -> DocumentMisfitError:
    return DocumentMisfitError(
        sequence=sequence,
        path=".".join([_DOCUMENT, *misfit.path]),
        reason=misfit.reason,
        schema="schema",
        otherwise="set on_misfit = 'record': a column `rejected` then holds what does not fit",
    )


def _refusal(misfit: MisfitError, text: str) -> str:
    said = {
        "path": ".".join(misfit.path),
        "reason": misfit.reason,
        "document": Raw(text.encode()),
    }
    return msgspec.json.encode(said).decode()
