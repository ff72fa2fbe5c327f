"""A configuration of tables, proposed from the rows of a source. Pure."""

from typing import Final

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.subscribe.scope import DEAD_LETTERS
from penstock.zero.config import ZeroSourceConfig
from penstock.zero.inferring import Sample, column_name, mixture
from penstock.zero.paths import fields_of
from penstock.zero.tables import draft_of_collection


class ProposedColumn(Struct, frozen=True, kw_only=True, rename="camel"):
    """A column."""

    name: str
    path: str
    type: str
    note: str = ""
    """What somebody should look at; empty for nothing."""


class ProposedTable(Struct, frozen=True, kw_only=True, rename="camel"):
    """A table; without columns where a collection can be none, which `note` says."""

    name: str
    source: str
    collection: str
    """With its database."""
    rows: int
    """How many of its rows were looked at."""
    key: tuple[str, ...] = ()
    columns: tuple[ProposedColumn, ...] = ()
    note: str = ""


class Proposer:
    """Looks at rows, and proposes."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._samples: dict[tuple[str, str], Sample] = {}

    def add(self, database: str, collection: str, key: bytes, document: bytes) -> None:
        """Look at a row."""
        if collection != DEAD_LETTERS:
            sample = self._samples.setdefault((database, collection), Sample())
            sample.add(fields_of(key), fields_of(document))

    def tables(self) -> list[ProposedTable]:
        """A table for each collection, in the order of their names."""
        taken: set[str] = set()
        return [
            self._table(database, collection, sample, column_name(collection, taken))
            for (database, collection), sample in sorted(self._samples.items())
        ]

    def _table(self, database: str, collection: str, sample: Sample, name: str) -> ProposedTable:
        config = ZeroSourceConfig()
        full = f"{database}.{collection}"
        draft = draft_of_collection(self._source, database, collection, config)
        try:
            table = draft.table(sample)
        except ConfigError as error:
            return ProposedTable(
                name=name, source=self._source, collection=full, rows=sample.rows, note=str(error)
            )
        assert table is not None
        columns: list[ProposedColumn] = []
        for column in table.columns:
            seen = sample.key.get(column.path) if column.key else sample.fields.get(column.path)
            note = mixture(seen) if seen is not None else ""
            columns.append(
                ProposedColumn(name=column.name, path=column.path, type=column.type, note=note)
            )
        unknown = [name for name, seen in sample.fields.items() if not seen.types]
        note = f"only null so far, and no column yet: {', '.join(unknown)}" if unknown else ""
        return ProposedTable(
            name=name,
            source=self._source,
            collection=full,
            rows=sample.rows,
            key=table.key,
            columns=tuple(columns),
            note=note,
        )


_HEAD: Final = """\
# Proposed from the current rows. A column's type is what all of them fit; look at those with a
# remark. bigint, decimal and exact are sent as text, so that no digit is lost.
"""


def toml(tables: list[ProposedTable]) -> str:
    """A proposal as a part of the configuration file."""
    return "\n".join([_HEAD, *(_block(table) for table in tables)])


def _block(table: ProposedTable) -> str:
    said = f"of {table.rows:,} rows" if table.rows != 1 else "of one row"
    lines = [f"# {table.collection}: {said}"]
    if table.note:
        lines.append(f"# {_comment(table.note)}")
    if not table.columns:
        return "\n".join([*lines, ""])
    lines += [
        f"[serve.zero.tables.{table.name}]",
        f"source = {_text(table.source)}",
        f"collection = {_text(table.collection)}",
        f"key = [{', '.join(map(_text, table.key))}]",
        'new_fields = "add"',
        "",
        f"[serve.zero.tables.{table.name}.columns]",
    ]
    for column in table.columns:
        value = _text(column.type)
        if column.path != column.name:
            value = f"{{ from = {_text(column.path)}, type = {value} }}"
        note = f"  # {_comment(column.note)}" if column.note else ""
        lines.append(f"{column.name} = {value}{note}")
    return "\n".join([*lines, ""])


def _text(value: str) -> str:
    """A basic string of TOML."""
    escaped = "".join(_ESCAPES.get(one, one) for one in value)
    escaped = "".join(
        one if one >= " " and one != "\x7f" else f"\\u{ord(one):04x}" for one in escaped
    )
    return f'"{escaped}"'


def _comment(text: str) -> str:
    """Without what would end a comment."""
    return "".join(one if one.isprintable() else "?" for one in text)


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\"}
