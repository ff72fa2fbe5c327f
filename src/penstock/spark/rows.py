"""Rows as Spark wants them: the columns of `wire.ARROW_SCHEMA`, in Spark's types.

Spark has no unsigned integers: `check`, `commit_digest` and `key_hash` keep their 64 bits and are
read as signed LONGs (a value of 2**63 and more is negative; equal stays equal, and sums modulo
2**64 stay right). Documents are JSON text, VARIANT or a struct (`penstock.spark.variant`,
`penstock.spark.documents`); all else maps to the type that holds exactly the same values.

With structs there are two more columns. `rejected` is null where all documents of a row fit, else
JSON {column: {path, reason, document}}; whoever does not read it gets an error instead.
`description` is what a control event says, since that has no place in the struct.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock.errors import ConfigError, DocumentMisfitError
from penstock.event import Kind, event_id
from penstock.spark.documents import Converter, MisfitError, converter_of
from penstock.spark.options import Options
from penstock.spark.variant import encode_variant
from penstock.wire import ARROW_SCHEMA

DOCUMENT_COLUMNS: Final = ("full_document", "full_document_before_change")
_REJECTED, _DESCRIPTION = "rejected", "description"

_SPARK_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.int8(): ByteType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.uint64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.string(): StringType(),
    pa.list_(pa.string()): ArrayType(StringType()),
}

ENTRY_SCHEMA: Final = StructType(
    [StructField(field.name, _SPARK_TYPES[field.type]) for field in ARROW_SCHEMA]
)
"""The columns of an entry with its documents as JSON text."""


def schema_of(options: Options) -> StructType | str:
    """All columns that these options offer. DDL where only Spark can parse what the user wrote."""
    if options.documents == "json":
        return ENTRY_SCHEMA
    if options.documents == "variant":
        return _with_documents(VariantType())
    text = options.document_schema.strip()
    if not text:
        raise ConfigError(
            "documents = 'struct' needs documentSchema, such as '_id STRING, total DOUBLE'. "
            "Nothing was read."
        )
    if text.startswith("{"):
        return _with_documents(StructType.fromJson(json.loads(text)))
    columns = [
        f"`{field.name}` "
        + (f"STRUCT<{text}>" if field.name in DOCUMENT_COLUMNS else field.dataType.simpleString())
        for field in ENTRY_SCHEMA
    ]
    return ", ".join([*columns, f"`{_REJECTED}` STRING", f"`{_DESCRIPTION}` STRING"])


def _with_documents(kind: DataType) -> StructType:
    fields = [
        StructField(field.name, kind) if field.name in DOCUMENT_COLUMNS else field
        for field in ENTRY_SCHEMA
    ]
    if isinstance(kind, StructType):
        fields += [StructField(_REJECTED, StringType()), StructField(_DESCRIPTION, StringType())]
    return StructType(fields)


class RowFormat:
    """Turns batches of the log into batches of one Spark schema. Knows what to ask the log for."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises ConfigError if `schema` names a column, or a type, that the options do not offer.

        `schema` may name fewer columns than there are, in any order.
        """
        self._schema = schema
        self._structs: dict[str, Converter] = {}
        kind: DataType = VariantType() if options.documents == "variant" else StringType()
        if options.documents == "struct":
            found = {f.dataType for f in schema if f.name in DOCUMENT_COLUMNS}
            kind = next(iter(found), StructType())
            if not isinstance(kind, StructType) or len(found) > 1:
                raise ConfigError("documents = 'struct' needs one STRUCT type. Nothing was read.")
            self._structs = {
                name: converter_of(kind) for name in DOCUMENT_COLUMNS if name in schema.names
            }
        _check_columns(schema, _with_documents(kind))
        self._variants = options.documents == "variant"
        wanted = dict.fromkeys(name for name in schema.names if name in ARROW_SCHEMA.names)
        if options.documents == "struct":
            wanted |= dict.fromkeys(("kind", "sequence", "full_document"))
        # A range without any column could not be counted.
        self.columns: tuple[str, ...] = tuple(wanted) or ("sequence",)

    def arrow_schema(self) -> pa.Schema:
        """What Spark expects every batch to be."""
        return to_arrow_schema(self._schema, timezone="UTC")

    def convert(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The same rows in `schema`, which is `arrow_schema()`. Shares what needs no conversion.

        Raises DocumentMisfitError for a document that does not fit, unless `rejected` is read.
        """
        made: dict[str, Any] = {}
        if self._structs or _DESCRIPTION in schema.names:
            made = self._structured(batch, schema)
        columns: list[Any] = []
        for field in schema:
            if field.name in made:
                columns.append(made[field.name])
            elif self._variants and field.name in DOCUMENT_COLUMNS:
                columns.append(_variants(batch.column(field.name), field.type))
            else:
                columns.append(_column(batch.column(field.name), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _structured(self, batch: pa.RecordBatch, schema: pa.Schema) -> dict[str, Any]:
        kinds = batch.column("kind").to_pylist()
        texts = batch.column("full_document").to_pylist()
        rejected: list[dict[str, Any] | None] = [None] * batch.num_rows
        made: dict[str, Any] = {}
        for name, convert in self._structs.items():
            given = texts if name == "full_document" else batch.column(name).to_pylist()
            values: list[Any] = []
            for row, (kind, text) in enumerate(zip(kinds, given, strict=True)):
                if kind or text is None:
                    values.append(None)
                    continue
                try:
                    values.append(convert(msgspec.json.decode(text)))
                except MisfitError as misfit:
                    if _REJECTED not in schema.names:
                        raise _misfit(batch, row, name, misfit) from None
                    values.append(None)
                    rejected[row] = (rejected[row] or {}) | {name: _refusal(misfit, text)}
            made[name] = pa.array(values, schema.field(name).type)
        if _REJECTED in schema.names:
            texts_of = [one and msgspec.json.encode(one).decode() for one in rejected]
            made[_REJECTED] = pa.array(texts_of, pa.string())
        if _DESCRIPTION in schema.names:
            said = [text if kind else None for kind, text in zip(kinds, texts, strict=True)]
            made[_DESCRIPTION] = pa.array(said, pa.string())
        return made


def _check_columns(schema: StructType, offered: StructType) -> None:
    types = {field.name: field.dataType for field in offered}
    for field in schema:
        if field.name not in types:
            raise ConfigError(
                f"format 'penstock' has no column {field.name!r}. Nothing was read. Its columns "
                f"are {', '.join(types)}."
            )
        if field.dataType != types[field.name]:
            raise ConfigError(
                f"column {field.name} is {types[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}. Nothing was read. Convert it after reading."
            )


def _refusal(misfit: MisfitError, text: str) -> dict[str, Any]:
    return {
        "path": ".".join(misfit.path),
        "reason": misfit.reason,
        "document": Raw(text.encode()),
    }


def _misfit(batch: pa.RecordBatch, row: int, name: str, misfit: MisfitError) -> DocumentMisfitError:
    return DocumentMisfitError(
        sequence=batch.column("sequence")[row].as_py(),
        path=".".join([name, *misfit.path]),
        reason=misfit.reason,
    )


def _variants(texts: Any, kind: Any) -> Any:
    decode: Callable[[str], Any] = msgspec.json.decode
    encoded = [None if text is None else encode_variant(decode(text)) for text in texts.to_pylist()]
    empty = (b"", b"")
    parts = {
        "value": pa.array([(one or empty)[0] for one in encoded], pa.binary()),
        "metadata": pa.array([(one or empty)[1] for one in encoded], pa.binary()),
    }
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return pa.StructArray.from_arrays(
        [parts[field.name] for field in fields],
        fields=fields,
        mask=pa.array([one is None for one in encoded]),
    )


def _column(column: Any, wanted: pa.DataType) -> Any:
    if column.type == wanted:
        return column
    if column.type == pa.uint64():
        return column.view(wanted)
    # Lists differ only in the name of their element.
    return column.cast(wanted)


def gap_row(
    *, log_id: int, after: int, until: int, check: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """One entry of kind GAP in place of (after, until], which retention removed unread.

    Its `sequence` is the last one lost, and `check` that of the log behind it, by which reading
    goes on; it belongs to no source and no commit. The same loss gives the same row.
    """
    description = {"from": after, "to": until, "reason": "removed by retention before it was read"}
    row = dict.fromkeys(ARROW_SCHEMA.names) | {
        "sequence": until,
        "check": check,
        "kind": int(Kind.GAP),
        "operation_type": "gap",
        "event_id": event_id("", f"{log_id:016x}:{after}:{until}", 0),
        "full_document": json.dumps(description),
    }
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_pylist([{name: row[name] for name in columns}], schema=schema)


def range_of(description: str) -> tuple[int, int]:
    """The range (after, until] that an entry of `gap_row` says in its `full_document`."""
    said = json.loads(description)
    return int(said["from"]), int(said["to"])
