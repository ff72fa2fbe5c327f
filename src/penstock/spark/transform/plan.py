"""From what a user wrote to passes over a batch. Pure, but that Spark reads the schemas."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.documents import converter_of
from penstock.spark.transform.config import DeletesConfig, ExpectConfig, TransformConfig
from penstock.spark.transform.keys import kept, taken
from penstock.spark.transform.steps import step_of
from penstock.spark.transform.worker import Applied, Ask

COMPUTED: Final = frozenset({"filter", "sql", "function"})
"""What Spark computes."""


class Segment(Struct, frozen=True, kw_only=True):
    """Steps over documents, and then what Spark computes of their outcome."""

    steps: tuple[Applied, ...] = ()
    asks: tuple[Ask, ...] = ()
    texts: tuple[str, ...] = ()
    """By ask: its condition, SELECT or function."""


class Plan(Struct, frozen=True, kw_only=True):
    """All of a pipeline's passes."""

    segments: tuple[Segment, ...]
    """The last one has no asks."""
    hiding: tuple[tuple[frozenset[str], int], ...]
    """By step that hides, in order: its collections, and the pass in which it is done."""

    def hiding_at(self, number: int) -> tuple[tuple[frozenset[str], bool], ...]:
        """As Pass.hiding, for the pass of that number."""
        return tuple((collections, done < number) for collections, done in self.hiding)


def plan_of(transforms: Sequence[TransformConfig], expect: Sequence[ExpectConfig]) -> Plan:
    """The passes of a pipeline. Raises ConfigError for a schema that Spark does not read."""
    segments: list[Segment] = []
    steps: list[Applied] = []
    hiding: list[tuple[frozenset[str], int]] = []
    ahead = sum(isinstance(one, DeletesConfig) for one in transforms)
    for number, config in enumerate(transforms):
        collections = frozenset(config.collections)
        name = config.called(number + 1 - ahead)
        computed = config.kind in COMPUTED
        if config.hides:
            hiding.append((collections, len(segments) + computed))
        if computed:
            ask = Ask(
                column=f"_penstock_{number}",
                name=name,
                collections=collections,
                schema=_schema(config.document_schema, name),
                kind=config.kind,
                hides=config.hides,
            )
            text = config.filter or config.sql or config.function
            segments.append(Segment(steps=tuple(steps), asks=(ask,), texts=(text,)))
            steps = []
        else:
            steps.append(
                Applied(
                    step=step_of(config),
                    name=name,
                    collections=collections,
                    hides=config.hides,
                    taken=taken(config, transforms[:number]),
                    kept=kept(config, transforms[:number]),
                )
            )
    asks = tuple(
        Ask(
            column=f"_penstock_expect_{number}",
            name=one.name,
            collections=frozenset(one.collections),
            schema=_schema(one.document_schema, f"expectation {one.name}"),
            kind="expect",
            action=one.action,
        )
        for number, one in enumerate(expect)
    )
    if steps or asks:
        texts = tuple(one.condition for one in expect)
        segments.append(Segment(steps=tuple(steps), asks=asks, texts=texts))
    if segments and segments[-1].asks:
        segments.append(Segment())
    return Plan(segments=tuple(segments), hiding=tuple(hiding))


def _schema(text: str, name: str) -> StructType:
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        raise ConfigError(
            f"{name}: document_schema {text!r} is no schema: {error.getCondition()}. Nothing was "
            f"written. Write fields and types as in 'total DOUBLE, name STRING'."
        ) from None
    if not isinstance(schema, StructType):
        raise ConfigError(f"{name}: document_schema {text!r} names no fields. Nothing was written.")
    try:
        converter_of(schema)
    except ConfigError:
        raise ConfigError(
            f"{name}: document_schema {text!r} has a type that no value of a document is: "
            f"{schema.simpleString()}. Nothing was written. Take another one."
        ) from None
    return schema
