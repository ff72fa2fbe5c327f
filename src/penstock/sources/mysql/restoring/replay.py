"""A trail's changes as statements, in their order and with their transactions. Pure.

Whoever runs the statements runs each before it asks for the next: what a table's columns are is
asked when its first change comes, behind the statements that made it so.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.audit.fold import (
    CHANGES,
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
from penstock.sources.mysql.restoring import sql
from penstock.sources.mysql.restoring.columns import ServerTable
from penstock.sources.mysql.restoring.ddl import Place, UnclearStatementError, restated
from penstock.sources.mysql.restoring.sql import BEGIN, COMMIT, Statement, UnfitError


class Replay:
    """Statements of records that come in order."""

    def __init__(
        self,
        *,
        wanted: Callable[[Name], bool],
        to: Place,
        facts_of: Callable[[Name], ServerTable | None],
        on_doubt: Callable[[Doubt], None],
    ) -> None:
        """`facts_of` describes a table where it is to be; None where nobody can be asked.

        `on_doubt` is told of each gap, erased record and update without exact meaning, and raises
        if that is not to be gone past: then the record changes nothing.
        """
        self._wanted = wanted
        self._to = to
        self._facts_of = facts_of
        self._on_doubt = on_doubt
        self._facts: dict[Name, ServerTable | None] = {}
        self._open: str | None = None
        """The transaction that has begun."""
        self._raw: tuple[str | None, str] = (None, "")
        """The transaction and text of the last statement that was taken as it was written."""
        self.transactions = 0

    def statements(self, records: Iterable[Mapping[str, Any]]) -> Iterator[Statement]:
        """The statements. Raises AuditError for what cannot be done again exactly, by its record.

        What came before it stands.
        """
        for record in records:
            try:
                yield from self._statements(record)
            except (UnfitError, UnclearStatementError) as error:
                raise AuditError(
                    f"record {record['at']} of the trail cannot be replayed: {error}. What came "
                    f"before its transaction was replayed. Replay from behind it (--from "
                    f"at:{record['at']}) once you have done it by hand."
                ) from error
        yield from self._end()

    def _statements(self, record: Mapping[str, Any]) -> Iterator[Statement]:
        op, name = record["op"], name_of(record)
        if op == "gap":
            if not name[1] or self._wanted(name):
                said = f"changes were lost: {said_of(record).get('reason')}"
                self._on_doubt(doubt_of(record, "gap", said))
        elif op == "ddl":
            if only_describes(record):
                return
            if self._wanted(name) or (not name[1] and self._wanted((name[0], "*"))):
                yield from self._end()
                yield from self._altered(record)
        elif op in CHANGES:
            if not self._wanted(name):
                return
            if "erased" in record:
                self._on_doubt(doubt_of(record, "erased", "a change of a row was erased"))
                return
            transaction = record["txn"]["id"] or f"at:{record['at']}"
            if self._open != transaction:
                yield from self._end()
                self._open = transaction
                self.transactions += 1
                yield BEGIN
            yield from self._changed(record, name)
        elif not changes_nothing(record):
            raise AuditError(
                f"record {record['at']} of the trail is a {op!r}, which this version does not "
                f"know. Use the version that wrote it."
            )

    def _end(self) -> Iterator[Statement]:
        if self._open is not None:
            self._open = None
            yield COMMIT

    def _altered(self, record: Mapping[str, Any]) -> Iterator[Statement]:
        said = said_of(record)
        this = (record["txn"]["id"], str(said.get("statement", "")))
        if this == self._raw:
            return  # it did that too
        found = restated(record, self._to)
        if found is None:
            return
        if said.get("operation") in {"create", "modify"} and "truncated" not in said:
            self._raw = this
        self._facts.clear()
        yield Statement(text=found.text, about=_about(record), sql_mode=found.sql_mode, alters=True)

    def _changed(self, record: Mapping[str, Any], name: Name) -> Iterator[Statement]:
        at, about = self._to(name), _about(record)
        if at not in self._facts:
            self._facts[at] = self._facts_of(at)
        facts = self._facts[at]
        op, keyless = record["op"], flags_of(record).get("keyless", False)
        if op == "i" and keyless:
            yield from sql.inserts(at, [after_of(record)], facts, about=about)
        elif op == "i":
            yield sql.put(at, after_of(record), facts, about=about)
        elif op == "d" and keyless:
            yield sql.delete_equal(at, before_of(record), 1, facts, about=about)
        elif op == "d":
            yield sql.delete(at, record["meta"]["pk"], about=about)
        elif not keyless:
            chg: Mapping[str, Mapping[str, Any]] = record["chg"]
            if any("size" in change for change in chg.values()):
                raise UnfitError(f"{'.'.join(name)}: an update of a part of a value")
            now = {column: change["t"] for column, change in chg.items() if "t" in change}
            gone = [column for column, change in chg.items() if "t" not in change]
            key = record["meta"]["pk"]
            found = sql.update(at, key, now, gone, facts, about=about)
            if found is not None:
                yield found


def _about(record: Mapping[str, Any]) -> str:
    return f"{'.'.join(name_of(record))}, record {record['at']}"
