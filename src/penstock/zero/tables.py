"""Tables as a shard is told of them: columns, key, and which documents they have. Pure.

A `Table` is what was announced, and all that is needed to go on from there: a shard's record keeps
it as JSON. A `Draft` is what the configuration says of one, before anything is known of its rows.
"""

from typing import Any, Final, Literal

import msgspec
import xxhash
from msgspec import Raw, Struct

from penstock.errors import ConfigError
from penstock.wire.shown import is_hidden
from penstock.zero.config import (
    Condition as ConditionConfig,
)
from penstock.zero.config import (
    NewFields,
    ZeroExistsConfig,
    ZeroSourceConfig,
    ZeroTableConfig,
)
from penstock.zero.inferring import FIELDS_MAX, Sample, Seen, column_name, type_of
from penstock.zero.messages import IndexSpec, NamedColumn, Relation, RowKey, TableId, TableSpec
from penstock.zero.paths import Condition
from penstock.zero.types import KEY_TYPES, column_spec

FORMAT: Final = 2
"""Of what tables are made as; another makes other fingerprints."""


class Column(Struct, frozen=True, omit_defaults=True):
    """A column."""

    name: str
    path: str
    """The field that it is of; empty for the rest column."""
    type: str
    pos: int
    key: bool = False
    required: bool = False
    """Whether a row without it is refused; a key's columns are."""
    declared: bool = False
    """Whether the configuration says its type."""

    @property
    def named(self) -> NamedColumn:
        """As it is announced."""
        not_null = self.key or self.required
        return NamedColumn(self.name, column_spec(self.type, pos=self.pos, not_null=not_null))


class Table(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table that is announced, or about to be."""

    schema: str
    name: str
    source: str
    database: str = ""
    """Empty until a row says it, where the configuration does not."""
    collection: str
    columns: tuple[Column, ...]
    where: tuple[Condition, ...] = ()
    new_fields: NewFields = "ignore"
    rest: str = ""
    """The name of the rest column; empty for none."""
    whole: bool = False
    """Whether it is here because its whole source is: then it ends with its collection."""
    index: str
    """The name of its unique index; one for the whole schema, and kept when it is renamed."""
    next_pos: int
    fingerprint: str
    """Of the configuration that it was made from."""

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns of its key."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def id(self) -> TableId:
        """Its name in messages about it."""
        return TableId(self.schema, self.name)

    @property
    def relation(self) -> Relation:
        """Its name in messages about its rows."""
        return Relation(schema=self.schema, name=self.name, row_key=RowKey(self.key))

    def spec(self) -> TableSpec:
        """As `create-table` has it."""
        return TableSpec(
            schema=self.schema,
            name=self.name,
            primary_key=self.key,
            columns={column.name: column.named.spec for column in self.columns},
        )

    def indexes(self) -> tuple[IndexSpec, ...]:
        """Its indexes: the unique one that makes Zero know its rows (Z5)."""
        columns: dict[str, Literal["ASC", "DESC"]] = dict.fromkeys(self.key, "ASC")
        return (
            IndexSpec(
                schema=self.schema,
                table_name=self.name,
                name=self.index,
                unique=True,
                columns=columns,
            ),
        )

    def column(self, name: str) -> Column | None:
        """The column of a name."""
        return next((one for one in self.columns if one.name == name), None)

    @property
    def consumed(self) -> frozenset[str]:
        """The outermost fields of which a column is, in whole or in part."""
        paths = [column.path for column in self.columns if column.path]
        return frozenset(paths) | frozenset(path.split(".", 1)[0] for path in paths)

    def grown(self, column: str, path: str, kind: str) -> "Table":
        """With one more column, the last."""
        added = Column(column, path, kind, self.next_pos)
        return msgspec.structs.replace(
            self, columns=(*self.columns, added), next_pos=self.next_pos + 1
        )


class Declared(Struct, frozen=True):
    """A column that the configuration says."""

    name: str
    path: str
    type: str
    required: bool = False


class Draft(Struct, frozen=True, kw_only=True):
    """What the configuration says of one table."""

    schema: str
    name: str
    source: str
    database: str = ""
    collection: str
    columns: tuple[Declared, ...] = ()
    key: tuple[str, ...] = ()
    where: tuple[Condition, ...] = ()
    new_fields: NewFields = "add"
    rest: str = ""
    whole: bool = False
    infers: bool = True
    """Whether fields that it says nothing of become columns when it begins."""
    fingerprint: str = ""

    def table(
        self, sample: Sample | None, *, database: str = "", hidden: frozenset[str] = frozenset()
    ) -> Table | None:
        """The table; None while too little is known of its rows to say it.

        `hidden` are fields that its reader may not see: their columns are absent. Raises
        ConfigError for what cannot be a table.
        """
        for condition in self.where:
            if is_hidden(condition.path, hidden):
                raise self._wrong(
                    f"where names {condition.path!r}, which the token that asks may not see: which "
                    f"rows come would tell what it holds"
                )
        shown = [one for one in self.columns if not is_hidden(one.path, hidden)]
        key = self._key(shown, sample)
        if key is None:
            return None
        columns = self._columns(shown, key, sample)
        if len(columns) > FIELDS_MAX:
            raise self._too_many()
        return Table(
            schema=self.schema,
            name=self.name,
            source=self.source,
            database=self.database or database,
            collection=self.collection,
            columns=columns,
            where=self.where,
            new_fields=self.new_fields,
            rest=self.rest,
            whole=self.whole,
            index=f"{self.name}_penstock_key",
            next_pos=len(columns) + 1,
            fingerprint=self.fingerprint,
        )

    def _key(self, shown: list[Declared], sample: Sample | None) -> list[Declared] | None:
        """The columns of the key, in its order."""
        if sample is not None and sample.rows:
            return self._seen_key(shown, sample)
        if self.key:
            by_name = {one.name: one for one in shown}
            missing = [name for name in self.key if name not in by_name]
            if missing:
                raise self._wrong(f"the token that asks may not see its key column {missing[0]!r}")
            return [by_name[name] for name in self.key]
        # A key of MongoDB is always this.
        return [one for one in shown if one.path == "_id" or one.path.startswith("_id.")] or None

    def _seen_key(self, shown: list[Declared], sample: Sample) -> list[Declared]:
        if sample.key_is_hidden:
            raise self._wrong("its key has a field that the token that asks may not see")
        if sample.is_keyless:
            raise self._wrong(
                f"{self.collection} has no primary key, and Zero needs one: of two rows that are "
                f"equal it could not tell which is gone. Give it a primary key, or leave it out"
            )
        if sample.key_differs:
            raise self._wrong("its rows have keys of different fields: it is more than one table")
        found: list[Declared] = []
        taken = {one.name.casefold() for one in (*shown, *_rest_of(self.rest))}
        for name, seen in sample.key.items():
            of = [one for one in shown if one.path == name or one.path.startswith(f"{name}.")]
            if self.key:
                of = [one for one in of if one.name in self.key]
            if not of and self.key:
                raise self._wrong(f"its key lacks a column of {name!r}, by which its source knows")
            found += of or [Declared(column_name(name, taken), name, _type(seen, key=True))]
        for one in found:
            if one.type not in KEY_TYPES:
                raise self._wrong(
                    f"its key column {one.name!r} is {one.type}, by which rows cannot be told "
                    f"apart; take one of {', '.join(sorted(KEY_TYPES))}"
                )
        if self.key:
            if missing := set(self.key) - {one.name for one in found}:
                raise self._wrong(f"{missing.pop()!r} is no part of its source's key")
            found.sort(key=lambda one: self.key.index(one.name))
        return found

    def _columns(
        self, shown: list[Declared], key: list[Declared], sample: Sample | None
    ) -> tuple[Column, ...]:
        keys = {one.name for one in key}
        every = [*key, *(one for one in shown if one.name not in keys)]
        declared = {one.name for one in shown}
        taken = {one.name.casefold() for one in (*every, *_rest_of(self.rest))}
        if self.infers and sample is not None:
            if sample.overflows:
                raise self._too_many()
            paths = {one.path for one in every}
            consumed = paths | {path.split(".", 1)[0] for path in paths}
            every += [
                Declared(column_name(name, taken), name, _type(seen))
                for name, seen in sample.fields.items()
                if name not in consumed and seen.types
            ]
        every += _rest_of(self.rest)
        return tuple(
            Column(
                name=one.name,
                path=one.path,
                type=one.type,
                pos=number,
                key=one.name in keys,
                required=one.required,
                declared=one.name in declared,
            )
            for number, one in enumerate(every, 1)
        )

    def _too_many(self) -> ConfigError:
        return self._wrong(
            f"{self.collection} has more than {FIELDS_MAX} different fields. Say which are columns "
            f"(columns = ...), and keep the others with rest = 'NAME' or leave them out with "
            f"new_fields = 'ignore'"
        )

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(f"table {self.name} of Zero: {why}. Nothing was sent.")


def _rest_of(rest: str) -> list[Declared]:
    return [Declared(rest, "", "json")] if rest else []


def _type(seen: Seen, *, key: bool = False) -> str:
    return type_of(seen.types, key=key) if seen.types else "exact"


# --- from the configuration ---------------------------------------------------------------------


def fingerprint_of(*parts: Any) -> str:
    """The digest of what a table is made from."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([FORMAT, *parts], order="sorted"))


def conditions_of(where: dict[str, ConditionConfig]) -> tuple[Condition, ...]:
    """What `where` says."""
    made: list[Condition] = []
    for path, said in where.items():
        if isinstance(said, ZeroExistsConfig):
            made.append(Condition(path, exists=said.exists))
        else:
            among = said if isinstance(said, list) else [said]
            made.append(Condition(path, tuple(Raw(msgspec.json.encode(one)) for one in among)))
    return tuple(made)


def split_collection(name: str) -> tuple[str, str]:
    """Database, empty where it is not said, and collection."""
    database, dot, collection = name.partition(".")
    return (database, collection) if dot else ("", name)


def draft_of(name: str, config: ZeroTableConfig) -> Draft:
    """The draft of a configured table."""
    database, collection = split_collection(config.collection)
    return Draft(
        schema=config.schema_name,
        name=name,
        source=config.source,
        database=database,
        collection=collection,
        columns=tuple(
            Declared(column, one.path or column, one.type) for column, one in config.columns.items()
        ),
        key=tuple(config.key),
        where=conditions_of(config.where),
        new_fields=config.policy,
        rest=config.rest or "",
        infers=not config.columns or config.policy == "add",
        fingerprint=fingerprint_of(name, config.model_dump(mode="json", by_alias=True)),
    )


def draft_of_collection(
    source: str, database: str, collection: str, config: ZeroSourceConfig
) -> Draft:
    """The draft of one collection of a whole source."""
    return Draft(
        schema=config.schema_name,
        name=collection,
        source=source,
        database=database,
        collection=collection,
        new_fields=config.policy,
        rest=config.rest or "",
        whole=True,
        fingerprint=fingerprint_of(source, config.model_dump(mode="json", by_alias=True)),
    )
