"""Functions of a user, for the tests of transforms."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame


def doubled(entries: "DataFrame") -> "DataFrame":
    """n twice as large, with the collection's name; without those of n = 13."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

    document = F.struct(
        F.col("document._id").alias("_id"),
        (F.col("document.n") * 2).alias("n"),
        F.col("collection").alias("of"),
    )
    kept = entries.where("document.n <> 13")
    return kept.select("sequence", document.alias("document"))


def poisoned(entries: "DataFrame") -> "DataFrame":
    """As it is; fails on n = 666."""

    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            documents: Any = batch["document"]
            if 666 in documents.field("n").to_pylist():
                raise ValueError("the secret of n is 666")
            yield batch

    chosen = entries.select("sequence", "document")
    return chosen.mapInArrow(look, chosen.schema)


def asking(entries: "DataFrame") -> "DataFrame":
    """As it is; fails while there is the file AWAY, as if a service that it asks were away, and on
    n = 666."""
    away = Path(os.environ["AWAY"])

    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            documents: Any = batch["document"]
            if 666 in documents.field("n").to_pylist():
                raise ValueError("the secret of n is 666")
            if away.exists() and batch.num_rows:
                raise RuntimeError("nobody answers")
            yield batch

    chosen = entries.select("sequence", "document")
    return chosen.mapInArrow(look, chosen.schema)


def connecting(entries: "DataFrame") -> "DataFrame":
    """As it is; fails before it has seen anything."""

    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        if "ANSWERED" not in os.environ:
            raise RuntimeError("nobody answers")
        yield from batches

    chosen = entries.select("sequence", "document")
    return chosen.mapInArrow(look, chosen.schema)


def twice(entries: "DataFrame") -> "DataFrame":
    """Two documents for each change."""
    chosen = entries.select("sequence", "document")
    return chosen.unionAll(chosen)


def invented(entries: "DataFrame") -> "DataFrame":
    """Documents of sequences that were never given."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

    return entries.select((F.col("sequence") + 1000).alias("sequence"), "document")
