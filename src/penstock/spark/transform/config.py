"""What a user writes of the steps before a destination, and of what is expected there."""

import re
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.config import Config

STEPS: Final = (
    "select",
    "drop",
    "rename",
    "cast",
    "flatten",
    "mask",
    "hash",
    "filter",
    "sql",
    "function",
    "explode",
)
"""What a transform can be; each is exactly one of them."""

ELEMENT: Final = "element"
"""The column that says which place in the array, from 0 on, a row of `explode` has."""

HIDING: Final = frozenset({"select", "drop", "mask", "hash", "sql", "function"})
"""Steps behind which less of a document may be seen than before."""

_TYPED: Final = frozenset({"filter", "sql", "function"})
_SALT_LENGTH_MIN: Final = 16
_SELECT = re.compile(r"\s*SELECT\s+(?!DISTINCT\b|ALL\b)", re.IGNORECASE)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Cast = Literal["string", "int", "long", "double", "decimal", "boolean", "timestamp"]
"""What a field can be cast to."""


class TransformConfig(Config):
    """One step of a pipeline's transforms: exactly one of select, drop, ..., function."""

    collections: tuple[str, ...] = Field(
        (), description="Only changes of these collections; empty for all of the pipeline."
    )
    select: tuple[str, ...] = Field((), description="Keep these fields and no others.")
    drop: tuple[str, ...] = Field((), description="Leave out these fields; dots lead inside.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="New names of fields, as {old = 'new'}."
    )
    cast: dict[str, Cast] = Field(
        default_factory=dict,
        description="Fields as another kind: string, int, long, double, decimal, boolean or "
        "timestamp. A change with a value that cannot be it exactly is rejected.",
    )
    flatten: bool | tuple[str, ...] = Field(
        False, description="Fields of objects become fields of the document: all, or of these."
    )
    separator: str = Field("_", description="Between the names that `flatten` joins.")
    mask: tuple[str, ...] = Field(
        (), description="Fields whose value is replaced by `****`; null stays null."
    )
    hash: tuple[str, ...] = Field(
        (),
        description="Fields whose value is replaced by its HMAC-SHA256 under `salt`, in 64 hex "
        "digits: of a text in UTF-8, of a whole number by its digits, of another value as the log "
        "has it.",
    )
    salt: SecretStr | None = Field(None, description="The key of `hash`, 16 characters and more.")
    filter: str = Field(
        "",
        description="A condition in Spark SQL over `document_schema`. A row that does not meet it, "
        "or no longer does, is deleted at the destination.",
    )
    sql: str = Field(
        "",
        description="A SELECT in Spark SQL from `documents`, whose columns are `document_schema`; "
        "its columns are the new document.",
    )
    function: str = Field(
        "", description="A Python function DataFrame -> DataFrame, as `package.module:name`."
    )
    explode: str = Field(
        "",
        description="An array field: a row for each of its elements. The last step, and of tables "
        "and changelogs only.",
    )
    document_schema: str = Field(
        "",
        description="The fields that filter, sql or function see: 'total DOUBLE, name STRING'.",
    )

    @property
    def kind(self) -> str:
        """Which of STEPS it is."""
        return next(name for name in STEPS if getattr(self, name))

    @property
    def hides(self) -> bool:
        return self.kind in HIDING

    def called(self, number: int) -> str:
        """What it is called in errors and rejects; `number` is its place in the file, from 1."""
        return f"transform {number} ({self.kind})"

    def concerns(self, collection: str) -> bool:
        """Whether it is done to the changes of a collection."""
        return not self.collections or collection in self.collections

    @model_validator(mode="after")
    def _is_one_step(self) -> "TransformConfig":
        given = [name for name in STEPS if getattr(self, name)]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise ValueError(f"a transform is exactly one of {', '.join(STEPS)}; here is {said}")
        (kind,) = given
        if bool(self.document_schema.strip()) is not (kind in _TYPED):
            raise ValueError(
                "document_schema belongs to filter, sql and function, and they need it: the fields "
                "that they read, as in 'total DOUBLE, name STRING'"
            )
        if (self.salt is not None) is not (kind == "hash"):
            raise ValueError("salt belongs to hash, which needs one")
        if self.salt and len(self.salt.get_secret_value()) < _SALT_LENGTH_MIN:
            raise ValueError(f"a salt has {_SALT_LENGTH_MIN} characters or more")
        if kind == "sql" and not _SELECT.match(self.sql):
            raise ValueError("sql begins with SELECT, and not with SELECT DISTINCT")
        if kind == "function" and not _FUNCTION.fullmatch(self.function):
            raise ValueError(f"{self.function!r} names no function; write package.module:name")
        _check_names(self)
        return self


class DeletesConfig(TransformConfig):
    """The step that `apply_as_deletes` of a pipeline is."""

    def called(self, number: int) -> str:  # noqa: ARG002 - there is one, before all others
        """By the name of the setting."""
        return "apply_as_deletes"


def deletes_config(condition: str, document_schema: str) -> DeletesConfig:
    """The step by which a document that meets the condition is deleted. Null does not meet it."""
    text = f"CASE WHEN ({condition}) THEN false ELSE true END"
    return DeletesConfig.model_validate({"filter": text, "document_schema": document_schema})


def _check_names(step: TransformConfig) -> None:
    flattened = step.flatten if isinstance(step.flatten, tuple) else ()
    names = (*step.select, *step.drop, *step.rename, *step.cast, *flattened, *step.mask, *step.hash)
    if any(not name or name.startswith(".") or name.endswith(".") for name in names):
        raise ValueError("a field has an empty name, or one with a dot at its start or end")
    inside = (*step.drop, *step.cast, *step.mask, *step.hash)
    if any(part.isdecimal() for name in inside for part in name.split(".")[1:]):
        raise ValueError("a path leads through arrays by itself; it has no numbers")
    exploded = (step.explode,) if step.explode else ()
    whole = (*step.select, *step.rename, *step.rename.values(), *flattened, *exploded)
    if dotted := [name for name in whole if "." in name]:
        # An update could not tell such a field from one inside of another.
        raise ValueError(
            f"{step.kind} is of whole fields of the document, and {dotted[0]!r} has a dot; drop, "
            f"cast, mask and hash lead inside"
        )
    targets = list(step.rename.values())
    if len(set(targets)) < len(targets) or not all(targets):
        raise ValueError("rename gives two fields one name, or one of them none")
    if step.flatten and not step.separator:
        raise ValueError("separator is empty")


class ExpectConfig(Config):
    """What is expected of every document that goes to the destination."""

    name: str = Field(description="Its name, in metrics and rejects.", min_length=1)
    condition: str = Field(
        description="A condition in Spark SQL over `document_schema`; null is not met.",
        min_length=1,
    )
    document_schema: str = Field(
        description="The fields that the condition reads, as in 'total DOUBLE'.", min_length=1
    )
    action: Literal["warn", "drop", "stop", "expect", "expect_or_drop", "expect_or_fail"] = Field(
        "warn",
        description="Of a change that does not meet it: count it, write it to the rejects, or stop "
        "before its batch. Spark's words mean the same.",
    )
    collections: tuple[str, ...] = Field(
        (), description="Only changes of these collections; empty for all of the pipeline."
    )

    @field_validator("action")
    @classmethod
    def _own_word(cls, action: str) -> str:
        theirs = {"expect": "warn", "expect_or_drop": "drop", "expect_or_fail": "stop"}
        return theirs.get(action, action)


def hidden_in(transforms: tuple[TransformConfig, ...], collection: str) -> bool:
    """Whether some step hides something of a collection's documents."""
    return any(
        step.hides and (not step.collections or collection in step.collections)
        for step in transforms
    )
