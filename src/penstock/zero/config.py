"""Which collections are tables of Zero, and how: `[serve.zero.tables.NAME]` and its neighbours."""

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from penstock.config import Config
from penstock.zero.types import KEY_TYPES, TYPE_NAMES, is_type

NewFields = Literal["add", "rest", "ignore"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
RESERVED_PREFIX: Final = "_0_"
"""Of columns that zero-cache adds to its replica."""


def is_name(name: str) -> bool:
    """Whether Zero takes a table or column of this name."""
    return _NAME.fullmatch(name) is not None and not name.startswith(RESERVED_PREFIX)


def _name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            f"{name!r} is no name of a table or column: letters, digits, '_' and '-', not a digit "
            f"first, and not {RESERVED_PREFIX} first"
        )
    return name


Name = Annotated[str, AfterValidator(_name)]


def _collection(name: str) -> str:
    database, dot, collection = name.partition(".")
    if not database or (dot and not collection):
        raise ValueError(f"{name!r} is no collection: write 'collection' or 'database.collection'")
    return name


Collection = Annotated[str, AfterValidator(_collection)]


class ZeroColumnConfig(Config):
    """A column of a table."""

    path: str = Field(
        default="",
        alias="from",
        description="The field; dots lead inside. Default: that of the column's name.",
    )
    type: str = Field(description=f"One of {', '.join(TYPE_NAMES)}, or one of them with [].")

    @field_validator("type")
    @classmethod
    def _known(cls, name: str) -> str:
        if not is_type(name):
            raise ValueError(
                f"{name!r} is no type of a column; take one of {', '.join(TYPE_NAMES)}, or one of "
                f"them with [] for an array of it"
            )
        return name

    @field_validator("path")
    @classmethod
    def _leads(cls, path: str) -> str:
        if path and any(not step for step in path.split(".")):
            raise ValueError(f"{path!r} leads nowhere: write names with dots between them")
        return path


class ZeroExistsConfig(Config):
    """A condition that a field is there and not null, or that it is not."""

    exists: bool


def _wrapper(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        raise ValueError(
            "a condition is a value, a list of values, {exists = true}, or a value of another "
            "type as Extended JSON has it: {'$oid' = '...'}"
        )
    return value


Wrapper = Annotated[dict[str, Any], AfterValidator(_wrapper)]
Value = bool | int | float | str | Wrapper
Condition = ZeroExistsConfig | Value | list[Value]


class ZeroTableConfig(Config):
    """One table, made of a collection or of the documents in it that meet a condition."""

    source: str = Field(description="The source's name, as under [sources].")
    collection: Collection = Field(
        description="The collection or table, as 'collection' or 'database.collection'. One whose "
        "own name has a dot needs its database before it."
    )
    schema_name: Name = Field(
        default="public", alias="schema", description="The schema that the table is announced in."
    )
    columns: dict[Name, ZeroColumnConfig] = Field(
        default_factory=dict[str, ZeroColumnConfig],
        description="Columns: a type, or {from = 'field.inside', type = '...'}. Without any, they "
        "are inferred from the current rows when a shard begins.",
    )
    key: list[Name] = Field(
        default_factory=list[str],
        description="The columns by which rows are told apart. All are parts of the source's key, "
        "and together the whole of it. Default: the source's key.",
    )
    where: dict[str, Condition] = Field(
        default_factory=dict[str, Condition],
        description="Only documents whose fields are these values, one of a list of values, or "
        "there or not: {kind = 'article', lang = ['de', 'en'], deleted_at = {exists = false}}.",
    )
    new_fields: NewFields | None = Field(
        default=None,
        description="What becomes of a field without a column: `add` a column, keep it in the "
        "`rest` column, or `ignore` it. Default: `rest` with a rest column, `ignore` with columns, "
        "`add` without.",
    )
    rest: Name | None = Field(
        default=None,
        description="A json column for fields that have no column, and for values that do not fit "
        "theirs.",
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _types_alone(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {
            name: {"type": one} if isinstance(one, str) else one
            for name, one in given.items()  # pyright: ignore[reportUnknownVariableType]
        }

    @model_validator(mode="after")
    def _fits(self) -> Self:
        folded = [name.casefold() for name in (*self.columns, *([self.rest] if self.rest else ()))]
        if len({*folded}) < len(folded):
            raise ValueError("two columns have one name: Zero does not tell capitals apart")
        for name in self.key:
            column = self.columns.get(name)
            if column is None:
                raise ValueError(f"key names {name!r}, which columns does not have")
            if column.type not in KEY_TYPES:
                raise ValueError(
                    f"key names {name!r} of the type {column.type}, by which rows cannot be told "
                    f"apart; take one of {', '.join(sorted(KEY_TYPES))}"
                )
        if self.new_fields == "rest" and self.rest is None:
            raise ValueError("new_fields = 'rest' needs the name of that column in rest")
        return self

    @property
    def policy(self) -> NewFields:
        """What becomes of new fields."""
        if self.new_fields is not None:
            return self.new_fields
        if self.rest is not None:
            return "rest"
        return "ignore" if self.columns else "add"


class ZeroSourceConfig(Config):
    """Every collection of a source as a table of its name, with inferred columns.

    A collection that is created, dropped or renamed later is a table that is. One that a table of
    `[serve.zero.tables]` is made of is left to that.
    """

    collections: list[Collection] = Field(
        default_factory=list[str], description="Only these; without any, all."
    )
    exclude: list[Collection] = Field(default_factory=list[str], description="None of these.")
    schema_name: Name = Field(
        default="public", alias="schema", description="The schema that its tables are in."
    )
    new_fields: NewFields | None = Field(
        default=None, description="As of a table. Default: `rest` with a rest column, else `add`."
    )
    rest: Name | None = Field(default=None, description="As of a table.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.new_fields == "rest" and self.rest is None:
            raise ValueError("new_fields = 'rest' needs the name of that column in rest")
        return self

    @property
    def policy(self) -> NewFields:
        """What becomes of new fields."""
        return self.new_fields or ("rest" if self.rest is not None else "add")


class ZeroSystemTableConfig(Config):
    """The collection that one of Zero's own tables is made of: `clients` or `mutations`."""

    source: str = Field(description="The source's name, as under [sources].")
    collection: Collection = Field(description="As of a table.")
    columns: dict[Name, str] = Field(
        default_factory=dict[str, str],
        description="The field of a column whose name is another, as {clientID = '_id.client'}. "
        "The columns of its key are fields of the source's key.",
    )
    where: dict[str, Condition] = Field(
        default_factory=dict[str, Condition], description="As of a table."
    )


class ZeroTablesConfig(Config):
    """What `[serve.zero]` says of tables."""

    tables: dict[Name, ZeroTableConfig] = Field(
        default_factory=dict[str, ZeroTableConfig], description="Tables, by name."
    )
    sources: dict[str, ZeroSourceConfig] = Field(
        default_factory=dict[str, ZeroSourceConfig],
        description="Sources all of whose collections are tables, by the source's name.",
    )
    clients: ZeroSystemTableConfig | None = Field(
        default=None,
        description="Where the last mutation of each client is: clientGroupID, clientID, "
        "lastMutationID, userID. Without it, the table is empty and no mutation is confirmed.",
    )
    mutations: ZeroSystemTableConfig | None = Field(
        default=None,
        description="Where results of mutations are, for their clients: clientGroupID, clientID, "
        "mutationID, result. Without it, the table is empty.",
    )
