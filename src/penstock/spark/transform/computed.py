"""What Spark computes of documents: conditions, SQL and a user's function."""

# The stubs of Spark and pyarrow leave types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import importlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.transform.rowwise import require_condition, require_rowwise
from penstock.spark.transform.values import encoder_of
from penstock.spark.transform.worker import Ask

if TYPE_CHECKING:
    from pyspark.sql import Column

_ENTRY: Final = "_penstock_entry"
_ANSWER: Final = "_penstock_answer"
_SEQUENCE: Final = "_penstock_sequence"
_COUNT: Final = "_penstock_count"
_VIEW: Final = "documents"
_SELECT = re.compile(r"\s*SELECT\s+", re.IGNORECASE)

Hold = Callable[[DataFrame], DataFrame]
"""Keeps what is computed, for as long as the batch is written."""


def answer(
    frame: DataFrame, ask: Ask, text: str, *, pipeline: str, entry: Sequence[str], hold: Hold
) -> DataFrame:
    """`frame` with the answer of `ask` in its column instead of the question.

    Raises ConfigError for a `text` that Spark, or Python, does not understand.
    """
    try:
        if ask.kind in {"filter", "expect"}:
            return _condition(frame, ask, text)
        frame = hold(frame)
        asked = frame.where(F.col(ask.column).isNotNull())
        found = (
            _of_sql(asked, ask, text) if ask.kind == "sql" else _of_user(asked, ask, text, entry)
        )
        return _joined(frame, found, ask, pipeline)
    except (AnalysisException, ParseException) as error:
        condition = error.getCondition()
        raise ConfigError(
            f"pipeline {pipeline}: {ask.name} is not understood by Spark: {condition} in {text!r}. "
            f"Nothing was written. Correct it; fields that it names must be in its document_schema."
        ) from None


def unanswered(frame: DataFrame, ask: Ask) -> DataFrame:
    """As `answer`, of an expectation that no document meets."""
    return frame.withColumn(ask.column, F.lit(None).cast(BooleanType()))


def _condition(frame: DataFrame, ask: Ask, text: str) -> DataFrame:
    # The document's fields stand alone, so that they cannot be taken for an entry's.
    fields = frame.select(F.struct(*frame.columns).alias(_ENTRY), f"{ask.column}.*")
    asked = F.col(_ENTRY)[ask.column].isNotNull()
    alone = fields.select(F.expr(text).alias(_ANSWER))
    require_condition(alone, ask.name, text, of=fields)
    kind = alone.schema[0].dataType
    if not isinstance(kind, BooleanType):
        raise ConfigError(
            f"{ask.name}: {text!r} is {kind.simpleString()}, not a condition. Nothing was written. "
            f"Write what is true or false, as in 'total >= 0'."
        )
    condition = F.expr(text) if ask.action != "warn" else _met(F.expr(text))
    answered = fields.select(_ENTRY, F.when(asked, condition).alias(_ANSWER))
    own = [F.col(_ENTRY)[name].alias(name) for name in frame.columns if name != ask.column]
    return answered.select(*own, F.col(_ANSWER).alias(ask.column))


def _met(condition: "Column") -> "Column":
    """Whether it is true; false where Spark fails on it too, as on a division by zero."""
    # Spark has no try() for all; but an error within what this one is given makes it null as well.
    return F.try_to_binary(F.when(condition, F.lit(""))).isNotNull()


def _of_sql(asked: DataFrame, ask: Ask, text: str) -> DataFrame:
    view = asked.select(F.col("sequence").alias(_SEQUENCE), f"{ask.column}.*")
    view.createOrReplaceTempView(_VIEW)
    try:
        found = asked.sparkSession.sql(_SELECT.sub(f"SELECT {_SEQUENCE}, ", text, count=1))
        require_rowwise(found, ask.name, text, documents=_VIEW)
    finally:
        asked.sparkSession.catalog.dropTempView(_VIEW)
    names = [f"_{place}" for place in range(len(found.columns))]
    chosen = [
        F.col(name).alias(own)
        for name, own in zip(names, found.columns, strict=True)
        if own != _SEQUENCE
    ]
    own = [name for name in found.columns if name != _SEQUENCE]
    if len(set(own)) < len(own) or not own:
        raise ConfigError(
            f"{ask.name}: its SELECT gives no column, or two of one name. Nothing was written. "
            f"Name each with AS."
        )
    document = F.struct(*chosen)
    return found.toDF(*names).select(F.col("_0").alias(_SEQUENCE), document.alias(_ANSWER))


def _of_user(asked: DataFrame, ask: Ask, text: str, entry: Sequence[str]) -> DataFrame:
    found: Any = function_at(text, ask.name)(
        asked.select(*entry, F.col(ask.column).alias("document"))
    )
    columns = getattr(found, "columns", ())
    if "sequence" not in columns or "document" not in columns:
        raise ConfigError(
            f"{ask.name}: {text} gives no DataFrame with the columns sequence and document. "
            f"Nothing was written."
        )
    made: DataFrame = found.select(
        F.col("sequence").alias(_SEQUENCE), F.col("document").alias(_ANSWER)
    )
    if not isinstance(made.schema[_ANSWER].dataType, StructType):
        raise ConfigError(f"{ask.name}: the document of {text} is no STRUCT. Nothing was written.")
    return made


def function_at(text: str, name: str) -> Callable[[DataFrame], DataFrame]:
    """The user's function. Raises ConfigError where there is none."""
    module, _, attribute = text.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name}: there is no {text} ({type(error).__name__}). Nothing was written. Install "
            f"its package where the driver and the workers run, or set PYTHONPATH."
        ) from None
    if not callable(found):
        raise ConfigError(f"{name}: {text} is no function. Nothing was written.")
    return cast("Callable[[DataFrame], DataFrame]", found)


def _joined(frame: DataFrame, found: DataFrame, ask: Ask, pipeline: str) -> DataFrame:
    """Each entry with the document that was made for it, none where there is none.

    Only that is taken from what a user's code gives: all else of an entry it cannot change.
    """
    check_type(found.schema[_ANSWER].dataType, ask.name)
    made = found.groupBy(_SEQUENCE).agg(
        F.first(_ANSWER).alias(ask.column), F.count(F.lit(1)).alias(_COUNT)
    )
    told: Column = F.concat(
        F.lit(
            f"penstock.errors.TransformError: pipeline {pipeline}: {ask.name} gives more than one "
            f"document for the change at sequence "
        ),
        F.col(_SEQUENCE),
        F.lit(". Nothing of the batch was written. A change has one document, or none."),
    )
    once = F.when(F.col(_COUNT) > 1, F.raise_error(told)).otherwise(F.col(ask.column))
    made = made.select(_SEQUENCE, once.alias(ask.column))
    joined = frame.drop(ask.column).join(made, frame["sequence"] == made[_SEQUENCE], "full_outer")
    return joined.drop(_SEQUENCE)


def check_type(kind: DataType, name: str) -> None:
    """Raises ConfigError if a document cannot have a value of `kind`."""
    try:
        encoder_of(
            to_arrow_schema(StructType([StructField("_", kind)]), timezone="UTC").field(0).type
        )
    except PySparkException:
        raise ConfigError(
            f"{name}: its document has a type that no document can have: {kind.simpleString()}. "
            f"Nothing was written. CAST it to another one."
        ) from None
