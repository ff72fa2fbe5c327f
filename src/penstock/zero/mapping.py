"""Which streams feed which tables, as configured, and tables made of current rows. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from penstock.errors import ConfigError
from penstock.subscribe.scope import DEAD_LETTERS
from penstock.wire import Stream
from penstock.zero.config import ZeroSourceConfig, ZeroSystemTableConfig, ZeroTablesConfig
from penstock.zero.inferring import Sample, column_name
from penstock.zero.paths import fields_of, test_of
from penstock.zero.tables import (
    Declared,
    Draft,
    Table,
    conditions_of,
    draft_of,
    draft_of_collection,
    fingerprint_of,
    split_collection,
)

Place = tuple[str, str, str]
"""A source, a database and a collection."""
Hidden = Callable[[Stream], frozenset[str]]
"""The fields of a stream that a reader may not see."""


def place_of(stream: Stream) -> Place:
    """Where a stream's rows are, whichever tenant's they are."""
    return stream.source, stream.database, stream.collection


def nothing_hidden(_: Stream) -> frozenset[str]:
    """Of a reader who sees everything."""
    return frozenset()


class Mapping:
    """What is configured, for one shard: its name is in that of Zero's own tables."""

    def __init__(
        self,
        config: ZeroTablesConfig,
        *,
        app_id: str = "zero",
        shard_num: str = "0",
        hidden: Hidden = nothing_hidden,
    ) -> None:
        self._config = config
        self.hidden = hidden
        own = _system_drafts(config, f"{app_id}_{shard_num}")
        mapped = [draft_of(name, one) for name, one in config.tables.items()]
        self.drafts: Final = (*mapped, *(one for one in own if one.source))
        """Of tables that are named in the configuration."""
        unmapped = [one.table(None) for one in own if not one.source]
        self.fixed: Final = tuple(one for one in (*unmapped, permissions(app_id)) if one)
        """Tables that no source feeds: empty ones of Zero's own, and that of its permissions."""
        self.fingerprint: Final = fingerprint_of(
            config.model_dump(mode="json", by_alias=True), app_id, shard_num
        )
        """Of all of it: tables that were made of another are not to be gone on with."""
        _no_twins([*self.drafts, *self.fixed])
        self._known: dict[Place, tuple[Draft, ...]] = {}

    def wants(self, stream: Stream) -> bool:
        """Whether rows of a stream may be in a table, or its shape make one."""
        return bool(self.drafts_of(place_of(stream)))

    def is_named(self, place: Place) -> bool:
        """Whether the configuration has a table of this collection by name."""
        return any(not one.whole for one in self.drafts_of(place))

    def drafts_of(self, place: Place) -> tuple[Draft, ...]:
        """The drafts of the tables that a collection feeds."""
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self._found(place)
        return found

    def _found(self, place: Place) -> tuple[Draft, ...]:
        source, database, collection = place
        if not collection:
            return ()
        named = tuple(
            one
            for one in self.drafts
            if (one.source, one.collection) == (source, collection)
            and one.database in {"", database}
        )
        whole = self._config.sources.get(source)
        if named or whole is None or not _takes(whole, database, collection):
            return named
        draft = draft_of_collection(source, database, collection, whole)
        return (structs.replace(draft, name=column_name(collection, set())),)

    def sampling(self) -> "Sampling":
        """A look at current rows, to make tables of."""
        return Sampling(self)


class Sampling:
    """Makes tables of the current rows of all streams that the mapping wants."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._samples: dict[tuple[str, str], Sample] = {}
        self._databases: dict[tuple[str, str], str] = {}
        self._hidden: dict[tuple[str, str], frozenset[str]] = {}
        self._drafts: dict[tuple[str, str], Draft] = {}
        self._streams: dict[Stream, tuple[Draft, ...]] = {}
        self.left_out: dict[str, str] = {}
        """Collections of whole sources that can be no table, each with the reason."""
        for draft in mapping.drafts:
            self._drafts[draft.schema, draft.name] = draft

    def wants(self, stream: Stream) -> bool:
        """Whether rows of a stream say something that the configuration does not: a reading of
        current rows for streams of which none is wanted can be spared."""
        drafts = self._mapping.drafts_of(place_of(stream))
        return any(one.infers or one.table(None) is None for one in drafts)

    def add(self, stream: Stream, key: bytes, document: bytes) -> None:
        """Count a row, as its reader may see it. Raises ConfigError for one collection in two
        databases where the configuration does not say which."""
        drafts = self._streams.get(stream)
        if drafts is None:
            drafts = self._streams[stream] = self._met(stream)
        if not drafts:
            return
        key_fields, fields = fields_of(key), fields_of(document)
        for draft in drafts:
            test = test_of(draft.where)
            if test is None or test(fields):
                self._samples[draft.schema, draft.name].add(key_fields, fields)

    def _met(self, stream: Stream) -> tuple[Draft, ...]:
        drafts = self._mapping.drafts_of(place_of(stream))
        for draft in drafts:
            name = draft.schema, draft.name
            self._drafts.setdefault(name, draft)
            self._samples.setdefault(name, Sample())
            hidden = self._hidden.get(name, frozenset[str]())
            self._hidden[name] = hidden | self._mapping.hidden(stream)
            if self._databases.setdefault(name, stream.database) != stream.database:
                raise two_databases(draft, self._databases[name], stream.database)
        _no_twins([*self._drafts.values(), *self._mapping.fixed])
        return drafts

    def sample(self, schema: str, name: str) -> Sample | None:
        """What was seen of a table's rows."""
        return self._samples.get((schema, name))

    def tables(self) -> tuple[Table, ...]:
        """All tables that can be made now; one without rows may have to wait for its first.

        Raises ConfigError for what the configuration names and cannot be a table.
        """
        made: list[Table] = list(self._mapping.fixed)
        self.left_out.clear()
        for name, draft in self._drafts.items():
            try:
                table = draft.table(
                    self._samples.get(name),
                    database=self._databases.get(name, ""),
                    hidden=self._hidden.get(name, frozenset[str]()),
                )
            except ConfigError as error:
                if not draft.whole:
                    raise
                self.left_out[draft.collection] = str(error)
                continue
            if table is not None:
                made.append(table)
        return tuple(made)


def two_databases(draft: Draft, one: str, other: str) -> ConfigError:
    """The error of a collection that is in two databases."""
    return ConfigError(
        f"table {draft.name} of Zero: {draft.collection} is in the databases {one} and {other} of "
        f"{draft.source}, and their rows would be mixed. Write collection = "
        f"'{one}.{draft.collection}', or the other."
    )


def _takes(config: ZeroSourceConfig, database: str, collection: str) -> bool:
    def named(names: list[str]) -> bool:
        return any(
            split_collection(one) in {("", collection), (database, collection)} for one in names
        )

    if collection == DEAD_LETTERS and not named(config.collections):
        return False
    return (not config.collections or named(config.collections)) and not named(config.exclude)


def _no_twins(tables: Sequence[Draft | Table]) -> None:
    seen: dict[tuple[str, str], Draft | Table] = {}
    for one in tables:
        # A table of the schema public goes by its name alone, and capitals are not told apart.
        twin = seen.setdefault((one.schema.casefold(), one.name.casefold()), one)
        if twin is not one and twin != one:
            raise ConfigError(
                f"two tables of Zero have one name, {one.schema}.{one.name}: of "
                f"{twin.source}/{twin.collection} and of {one.source}/{one.collection}. Give one "
                f"another name under [serve.zero.tables], or leave it out of its source."
            )


# --- Zero's own tables --------------------------------------------------------------------------

_CLIENTS: Final = (
    ("clientGroupID", "text", True),
    ("clientID", "text", True),
    ("lastMutationID", "int", True),
    ("userID", "text", False),
)
_MUTATIONS: Final = (
    ("clientGroupID", "text", True),
    ("clientID", "text", True),
    ("mutationID", "int", True),
    # zero-cache 1.9.0 wants the former to be there, and to its clients it gives the latter.
    ("mutation", "jsontext", False),
    ("result", "jsontext", True),
)


def _system_drafts(config: ZeroTablesConfig, schema: str) -> list[Draft]:
    return [
        _system_draft("clients", _CLIENTS, 2, schema, config.clients),
        _system_draft("mutations", _MUTATIONS, 3, schema, config.mutations),
    ]


def _system_draft(
    name: str,
    columns: tuple[tuple[str, str, bool], ...],
    keys: int,
    schema: str,
    config: ZeroSystemTableConfig | None,
) -> Draft:
    paths = config.columns if config is not None else {}
    if unknown := set(paths) - {column for column, _, _ in columns}:
        raise ConfigError(
            f"[serve.zero.{name}]: Zero's table {name} has no column {unknown.pop()!r}."
        )
    database, collection = split_collection(config.collection) if config is not None else ("", "")
    return Draft(
        schema=schema,
        name=name,
        source=config.source if config is not None else "",
        database=database,
        collection=collection,
        columns=tuple(
            Declared(column, paths.get(column, column), kind, required)
            for column, kind, required in columns
        ),
        key=tuple(column for column, _, _ in columns[:keys]),
        where=conditions_of(config.where) if config is not None else (),
        new_fields="ignore",
        infers=False,
        fingerprint=fingerprint_of(
            schema, name, config.model_dump(mode="json") if config is not None else None
        ),
    )


def permissions(app_id: str) -> Table:
    """The table of an application's permissions, which must have exactly one row (Z6)."""
    draft = Draft(
        schema=app_id,
        name="permissions",
        source="",
        collection="",
        columns=(
            Declared("lock", "lock", "bool", True),
            Declared("permissions", "permissions", "json"),
            Declared("hash", "hash", "text"),
        ),
        key=("lock",),
        new_fields="ignore",
        infers=False,
        fingerprint=fingerprint_of("permissions"),
    )
    table = draft.table(None)
    assert table is not None
    return table
