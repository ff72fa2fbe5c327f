"""What rows were before a place, from the changes behind it alone. Pure.

So a table can be taken back whose trail does not begin with it: the first change of each row behind
the place says what the row was, and the rows that did not change are what they are.
"""

from collections.abc import Mapping
from typing import Any

import bson
from msgspec import Struct

from penstock.audit.fold import (
    CHANGES,
    Document,
    Doubt,
    Name,
    after_of,
    before_of,
    changes_nothing,
    doubt_of,
    flags_of,
    name_of,
    only_describes,
    said_of,
)
from penstock.errors import AuditError


class Was(Struct, kw_only=True):
    """One row: what it was at the place, and what the trail says that it is now."""

    there: bool
    """Whether there was one."""
    columns: Document
    """What is known of it at the place."""
    whole: bool
    """Whether that is all of its columns; if not, it was never deleted, and the rest is as now."""
    is_there: bool = True
    is_now: Document = {}
    """What is known of it now."""


class Undone(Struct, kw_only=True):
    """A table's rows that have changed since."""

    name: Name
    keyless: bool = False
    rows: dict[bytes, Was] = {}
    """By key, as BSON."""
    counts: dict[bytes, int] = {}
    """Of a table without a key: how many more of a row there were at the place."""
    doubts: list[Doubt] = []


class Undoing:
    """The changes behind a place, taken in their order."""

    def __init__(self, *, rows_max: int = 10_000_000) -> None:
        """Of no more than `rows_max` rows."""
        self._rows_max = rows_max
        self._rows = 0
        self.everywhere: list[Doubt] = []
        self.tables: dict[Name, Undone] = {}
        self.records = 0

    def take(self, record: Mapping[str, Any]) -> None:
        """The next record. Raises AuditError as `Fold.take` does."""
        self.records += 1
        op = record["op"]
        if op in CHANGES:
            self._change(record)
        elif op == "gap":
            self._doubt(record, "gap", f"changes were lost: {said_of(record).get('reason')}")
        elif op == "ddl":
            if only_describes(record):
                return
            operation = said_of(record).get("operation", "erased")
            self._doubt(record, "ddl", f"a statement changed it ({operation})")
        elif not changes_nothing(record):
            raise AuditError(
                f"record {record['at']} of the trail is a {op!r}, which this version does not "
                f"know. Nothing was changed. Use the version that wrote it."
            )

    def _change(self, record: Mapping[str, Any]) -> None:
        table = self._table(name_of(record))
        flags = flags_of(record)
        if "erased" in record:
            self._doubt(record, "erased", "a change of a row was erased, and so is unknown")
        elif flags.get("copied"):
            self._doubt(record, "copied", "it was copied again, which says nothing of before")
        else:
            if flags.get("partial"):
                said = "the source did not send the row before its change"
                self._doubt(record, "partial", said)
            if flags.get("keyless"):
                table.keyless = True
                self._keyless(table, record)
            else:
                self._keyed(table, record)
        self._rows += 1
        if self._rows > self._rows_max:
            raise AuditError(
                f"more than {self._rows_max:,} changes are to be undone. Nothing was changed. "
                f"Restore fewer tables at a time (--table), or use --mode state."
            )

    def _keyed(self, table: Undone, record: Mapping[str, Any]) -> None:
        op, key = record["op"], bson.encode(record["meta"]["pk"])
        chg: Mapping[str, Mapping[str, Any]] = record["chg"]
        was = table.rows.get(key)
        if was is None:
            was = table.rows[key] = Was(
                there=op != "i", columns=before_of(record) if op != "i" else {}, whole=op != "u"
            )
        elif not was.whole:
            was.columns = {**before_of(record), **was.columns}
            was.whole = op == "d"
        if op == "d":
            was.is_there, was.is_now = False, {}
            return
        now = after_of(record) if op == "i" else {n: c["t"] for n, c in chg.items() if "t" in c}
        was.is_now = now if op == "i" else {**was.is_now, **now}
        was.is_there = True

    def _keyless(self, table: Undone, record: Mapping[str, Any]) -> None:
        op = record["op"]
        if op == "u":
            return
        data = bson.encode(after_of(record) if op == "i" else before_of(record))
        count = table.counts.pop(data, 0) + (-1 if op == "i" else 1)
        if count:
            table.counts[data] = count

    def _table(self, name: Name) -> Undone:
        table = self.tables.get(name)
        if table is None:
            table = self.tables[name] = Undone(name=name)
        return table

    def _doubt(self, record: Mapping[str, Any], kind: str, said: str) -> None:
        doubt = doubt_of(record, kind, said)
        if doubt.table[1]:
            self._table(doubt.table).doubts.append(doubt)
        else:
            self.everywhere.append(doubt)
