"""What all pipelines have: what they read, how fast; and the steps that most of them may have."""

from collections.abc import Collection
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from penstock import checks
from penstock.config import Config, Seconds
from penstock.spark.transform.config import ExpectConfig, TransformConfig, deletes_config


class ReadingConfig(Config):
    """What a pipeline reads, and how fast."""

    source: str = Field(description="The source whose changes are applied.", min_length=1)
    collections: tuple[str, ...] = Field(
        (),
        description="Only these collections, as `name` or `source/name`; empty for all of the "
        "source. A pipeline that runs cannot be given more: they need a new one.",
    )
    trigger: Literal["availableNow"] | Seconds = Field(
        1.0, description="Seconds between batches, or `availableNow`: apply what there is, and end."
    )
    max_events_per_batch: int = Field(
        250_000, gt=0, description="Events per batch; a larger commit comes whole all the same."
    )
    start: Literal["beginning", "oldest"] = Field(
        "beginning",
        description="Where a new pipeline starts: at the log's first entry, and not at all if that "
        "is gone; or knowingly at the oldest that is left. Where a pipeline stands it goes on.",
    )
    metrics: str = Field(
        "off",
        description="Where the pipeline's process shows its metrics (`/metrics`), as "
        "127.0.0.1:9464; on this machine only.",
    )

    @property
    def outlives_retention(self) -> bool:
        """Whether it goes on where retention removed what it had not read, with a gap in its
        place; else it stops with TRIMMED."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """The collections, each with its source: a "/" in a name is not what separates them."""
        return tuple(f"{self.source}/{name}" for name in self.collections)

    @property
    def expectations(self) -> tuple[str, ...]:
        """The names of what is expected of documents."""
        return ()

    def unmatched(self, known: Collection[str]) -> list[str]:
        """A sentence for each name of a collection that is none of `known`, those of the source
        that the log has told of, with the nearest; none while nothing is known."""
        if not known:
            return []
        named = [(setting, name) for setting, names in self._naming() for name in names]
        once = list(dict.fromkeys(named))
        return checks.unmatched(once, known, known.__contains__, what="that the log has told of")

    def _naming(self) -> list[tuple[str, tuple[str, ...]]]:
        """The settings that name collections, and what they name."""
        return [("collections", self.collections)]

    @field_validator("metrics")
    @classmethod
    def _on_this_machine(cls, metrics: str) -> str:
        if metrics == "off":
            return metrics
        host, colon, port = metrics.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{metrics!r} is not an address; write host:port, or off")
        if host not in {"localhost", "127.0.0.1", "[::1]"}:
            raise ValueError(f"{metrics!r} is not of this machine; write 127.0.0.1:{port}")
        return metrics

    @field_validator("collections")
    @classmethod
    def _collections_are_plain(
        cls, collections: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        """Collections by their own names, which is what events call them."""
        source = str(info.data.get("source", ""))
        names = tuple(name.removeprefix(f"{source}/") for name in collections)
        for given, name in zip(collections, names, strict=True):
            if not name or name != name.strip() or "," in name:
                raise ValueError(f"{given!r} cannot be the name of a collection here")
            if "/" in name and name == given:
                raise ValueError(
                    f"{given!r} names a collection of another source; for one of that very name "
                    f"write {f'{source}/{name}'!r}"
                )
        if len(set(names)) < len(names):
            raise ValueError("a collection is named twice")
        return names


class SteppedPipelineConfig(ReadingConfig):
    """What is made of documents that may pass through steps first."""

    apply_as_deletes: str = Field(
        "",
        description="A condition in Spark SQL over `document_schema`. A row that meets it, as its "
        "source has it, is deleted at the destination: one that is only marked as deleted. Null "
        "does not meet it. The source's own deletes need no condition.",
    )
    document_schema: str = Field(
        "", description="The fields that `apply_as_deletes` reads, as in 'deleted BOOLEAN'."
    )
    transform: tuple[TransformConfig, ...] = Field(
        (), description="What is done to documents before they are written, step by step."
    )
    expect: tuple[ExpectConfig, ...] = Field(
        (), description="What is expected of documents when all steps are done."
    )
    max_rejects: int | None = Field(
        None,
        ge=0,
        description="Stop behind the batch with which a run has rejected more changes than this; "
        "without it, a pipeline goes on however many there are.",
    )
    max_rejects_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Stop behind a batch of which more than this share was rejected, of all rows "
        "that it wrote, deleted or rejected: 0.1 is a tenth.",
    )

    @property
    def expectations(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.expect)

    @model_validator(mode="after")
    def _deletes_read_fields(self) -> Self:
        if bool(self.apply_as_deletes.strip()) is not bool(self.document_schema.strip()):
            raise ValueError(
                "apply_as_deletes and document_schema go together: the condition, and the fields "
                "that it reads, as in 'deleted BOOLEAN'"
            )
        return self

    @model_validator(mode="after")
    def _steps_are_of_collections(self) -> Self:
        if len(set(self.expectations)) < len(self.expect):
            raise ValueError("two expectations have one name")
        named = {name for step in self.transform for name in step.collections}
        named |= {name for one in self.expect for name in one.collections}
        if self.collections and (others := sorted(named.difference(self.collections))):
            raise ValueError(f"a step names {', '.join(others)}, no collection of the pipeline")
        self._check_explode()
        return self

    def _naming(self) -> list[tuple[str, tuple[str, ...]]]:
        if self.collections:
            return super()._naming()  # and steps name no other
        steps = [("transform.collections", step.collections) for step in self.transform]
        return [*steps, *(("expect.collections", one.collections) for one in self.expect)]

    @property
    def steps(self) -> tuple[TransformConfig, ...]:
        """All that is done to documents, in order: `apply_as_deletes`, then `transform`."""
        if not self.apply_as_deletes.strip():
            return self.transform
        return (deletes_config(self.apply_as_deletes, self.document_schema), *self.transform)

    def _check_explode(self) -> None:
        """Raise ValueError where a document cannot become several rows."""
        if any(step.explode for step in self.transform):
            raise ValueError(
                "explode makes several rows of a document, and rows here are told apart by the "
                "document's key alone: which of them go with a change that does not say the whole "
                "array cannot be known. Pipelines to 'table' and 'changelog' have it"
            )

    def _check_last_explode(self) -> None:
        """Raise ValueError where it is not the last step, or a document has two."""
        steps = [bool(step.explode) for step in self.transform]
        if steps != sorted(steps):
            raise ValueError("explode is the last step")
        exploded = [step.collections for step in self.explodes]
        names = [name for collections in exploded for name in collections]
        if len(exploded) > 1 and (not all(exploded) or len(set(names)) < len(names)):
            raise ValueError("one field of a collection can be exploded")

    @property
    def explodes(self) -> tuple[TransformConfig, ...]:
        """The steps that make rows of elements."""
        return tuple(step for step in self.transform if step.explode)
