"""Proving trails in tests, and altering them by hand."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from penstock.audit.archives import Archives
from penstock.audit.erase import Eraser, Erasure
from penstock.audit.findings import Report
from penstock.audit.names import Table
from penstock.audit.outages import Patience
from penstock.audit.searching import key_of
from penstock.audit.trail import RAW, Trail
from penstock.audit.verify import Proof
from tests.audit.support import commit_of, row

T = TypeVar("T")


def patience(trail: Trail) -> Patience:
    return Patience(trail, stopping=threading.Event())


def verify(trail: Trail, *, archives: tuple[Path, ...] = (), **options: Any) -> Report:
    """The report of a proof."""
    named = Archives.at(archives, source=trail.source) if archives else None
    return Proof(trail, patience(trail), archives=named, **options).run()


def history() -> list[dict[str, Any]]:
    """Twenty changes of every kind, of which each says all that it can."""
    origin = '{"file":"bin.1","offset":4,"thread":7,"statement":"insert into t","actor":"ann"}'
    moved = '{"movedTo":{"id":9},"statementAt":0}'
    return [
        row(1, after={"id": 1, "name": None}, origin=origin, schema_version=3),
        row(
            2,
            before={"id": 1, "name": None},
            after={"id": 1, "name": ""},
            snapshot=True,
            origin='{"masked":["phone"]}',
        ),
        row(3, before={"id": 1, "name": ""}, origin=moved),
        row(4, after={"id": 4, "deep": {"a": [1, {"b": None}]}, "n": 1.5}),
        row(5, kind=3, operation_type="alter", full_document='{"sql":"alter table t"}'),
        *commit_of(6, 15),
    ]


def record_at(trail: Trail, at: int) -> RawBSONDocument:
    found = trail.raw_records.find_one({"at": Int64(at)})
    assert found is not None
    return found


def put_back(trail: Trail, record: RawBSONDocument) -> None:
    """A record as it was, whatever became of it; found by its place or its id."""
    trail.records.delete_many({"$or": [{"_id": record["_id"]}, {"at": record["at"]}]})
    trail.raw_records.insert_one(record)


def sound(report: Report) -> bool:
    """Whether nothing was found; shows what was."""
    assert report.findings == []
    return report.sound


class Killed(BaseException):
    """As if the process had been killed."""


class Dying(Patience):
    """Lets so many calls through, and ends the process at the next: before it, or behind it."""

    def __init__(self, trail: Trail, calls: int, *, behind: bool) -> None:
        super().__init__(trail, stopping=threading.Event())
        self.calls = calls
        self.behind = behind

    def call(self, act: Callable[[], T]) -> T:
        self.calls -= 1
        if self.calls < 0 and not self.behind:
            raise Killed
        found = super().call(act)
        if self.calls < 0:
            raise Killed
        return found


def erase(
    trail: Trail,
    key: str,
    *,
    archives: tuple[Path, ...] = (),
    patience: Patience | None = None,
    **options: Any,
) -> Erasure:
    """Erase a key of the table of the tests."""
    named = Archives.at(archives, source=trail.source) if archives else Archives(())
    patient = patience or Patience(trail, stopping=threading.Event())
    take_over = not trail.has_transactions()
    eraser = Eraser(trail, patient, named, take_over=take_over)
    said: dict[str, Any] = {"reason": "request 17", "by": "ann", **options}
    return eraser.erase(Table("db", "orders"), key_of(key), **said)


def everything(trail: Trail) -> str:
    """All that the trail's collections hold, as text."""
    names = trail.database.list_collection_names()
    return "\n".join(repr(one) for name in names for one in trail.database[name].find())


def copied(trail: Trail) -> dict[str, list[RawBSONDocument]]:
    """All that the trail's collections hold, to put it back."""
    names = trail.database.list_collection_names()
    return {
        name: list(trail.database[name].with_options(codec_options=RAW).find()) for name in names
    }


def put_all_back(trail: Trail, kept: dict[str, list[RawBSONDocument]]) -> None:
    """The trail as it was when it was copied."""
    for name in trail.database.list_collection_names():
        trail.database[name].delete_many({})
        if kept.get(name):
            trail.database[name].with_options(codec_options=RAW).insert_many(kept[name])
