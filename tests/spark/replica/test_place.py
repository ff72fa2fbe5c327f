"""Whoever begins a run knows what the transactions before it came to, those under way too."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from penstock.errors import PipelineError
from penstock.progress import Progress
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.altering import Added
from penstock.spark.replica.destination import PLACES, REJECTS, TABLES
from penstock.spark.replica.mongodb import MongoDestination
from penstock.spark.replica.place import Place
from penstock.spark.replica.postgres import PostgresDialect
from penstock.spark.replica.rows import Setup, SetupNeededError
from penstock.spark.replica.sql import SqlDestination
from penstock.spark.replica.steps import Done
from penstock.spark.replicate import ReplicaTarget
from penstock.spark.table.kinds import Kind
from penstock.spark.target import TargetStoppedError

Document = dict[str, Any]

NO_ENTRIES: Any = None
UNASKED: Any = None
"""There are no rejects to tell of."""
STOOD, CAME = Progress(7, 10, 1), Progress(7, 20, 2)


def config(uri: str) -> ReplicatePipelineConfig:
    return ReplicatePipelineConfig.model_validate({"to": "replicate", "source": "shop", "uri": uri})


def goes_on(place: Place | None, _tables: Any, _gone: Any) -> Place:
    assert place is not None
    return structs.replace(place, epoch=place.epoch + 1)


class Found(list[Document]):
    def sort(self, *_: Any, **__: Any) -> "Found":  # type: ignore[override]
        return self


class Collection:
    """As much of a collection as a claim asks for."""

    def __init__(self, *documents: Document) -> None:
        self.documents = {one["_id"]: one for one in documents}
        self.before_update: Callable[[], None] = lambda: None

    def find_one(self, which: Document, **_: Any) -> Document | None:
        return self.documents.get(which["_id"])

    def find(self, _: Document | None = None, **__: Any) -> Found:
        return Found(self.documents.values())

    def update_one(self, which: Document, update: Document, **_: Any) -> Any:
        # As MongoDB: a write waits for the transaction that has the document, then looks at it.
        act, self.before_update = self.before_update, lambda: None
        act()
        held = self.documents[which["_id"]]
        matches = all(held[name] == value for name, value in which.items())
        if matches:
            self.documents[which["_id"]] = {**held, **update["$set"]}

        class Result:
            matched_count = int(matches)

        return Result


class Database(dict[str, Collection]):
    def list_collection_names(self) -> list[str]:
        return list(self)


def test_a_claim_never_takes_back_what_a_transaction_under_way_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: Document = {"source": "shop", "collections": [], "epoch": 3, "progress": str(STOOD)}
    places = Collection({"_id": "p", **stored})
    database = Database({PLACES: places, TABLES: Collection(), REJECTS: Collection()})
    destination = MongoDestination("p", config("mongodb://there/shop"))
    monkeypatch.setattr(destination, "_database", lambda: database)

    def commits() -> None:
        places.documents["p"] = {**places.documents["p"], "progress": str(CAME)}

    places.before_update = commits
    place = destination.claim(goes_on)
    assert (place.progress, place.epoch) == (CAME, 4)
    assert places.documents["p"]["progress"] == str(CAME)


class Server:
    """An SQL server with one transaction under way, which ends when the place is asked for."""

    def __init__(self) -> None:
        self.progress = STOOD
        self.rejects: list[tuple[str, str, int]] = []
        self.epoch = 3

    def connect(self) -> "Server":
        return self

    def cursor(self) -> "Server":
        return self

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def execute(self, statement: str, values: Any = ()) -> "Server":
        self.answer: list[Any] = []
        if statement.endswith("FOR UPDATE"):
            self.progress, self.rejects = CAME, [("rows", '{"_id":1}', 15)]
            self.answer = [("shop", "[]", self.epoch, str(self.progress))]
        elif statement.startswith("UPDATE") and PLACES in statement:
            self.epoch = values[2]
        elif statement.startswith("SELECT table_name"):
            self.answer = list(self.rejects)
        return self

    def fetchone(self) -> Any:
        return self.answer[0] if self.answer else None

    def fetchall(self) -> list[Any]:
        return self.answer


def stale(destination: Any) -> Any:
    """The rows that it knows to lack a change."""
    return destination._known.stale


def sql(monkeypatch: pytest.MonkeyPatch) -> SqlDestination:
    settings = config("postgresql://there/shop")
    dialect = PostgresDialect("p", settings)
    server = Server()
    monkeypatch.setattr(dialect, "connect", server.connect)
    return SqlDestination("p", settings, dialect)


def test_a_claim_knows_the_rejects_of_a_transaction_that_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = sql(monkeypatch)
    assert destination.claim(goes_on).progress == CAME
    assert stale(destination) == {"rows": {'{"_id":1}': 15}}


def test_a_commit_that_was_asked_about_has_its_rejects_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = sql(monkeypatch)
    before = Place(pipeline="p", source="shop", collections=(), epoch=3, progress=STOOD)
    until = structs.replace(before, progress=CAME)
    destination.apply([], before=before, until=until, entries_at=NO_ENTRIES)
    later = structs.replace(before, progress=Progress(7, 30, 3))
    destination.apply([], before=until, until=later, entries_at=NO_ENTRIES)
    assert stale(destination) == {"rows": {'{"_id":1}': 15}}


@pytest.mark.parametrize(("tables", "changes"), [(1500, 1), (1, 1001)])
def test_a_batch_makes_as_many_tables_as_it_has_and_gives_up_one_that_others_change(
    monkeypatch: pytest.MonkeyPatch, tables: int, changes: int
) -> None:
    destination = sql(monkeypatch)
    needed = [
        (f"t{number}", Added(name="n", kind=Kind.INT32))
        for number in range(tables)
        for _ in range(changes)
    ]

    def apply(*_: object) -> Done:
        if needed:
            raise SetupNeededError(Setup(changes=[needed.pop()], owned=()))
        return Done()

    monkeypatch.setattr(destination, "_apply", apply)
    monkeypatch.setattr(destination, "_set_up", print)
    place = Place(pipeline="p", source="shop", collections=(), epoch=3, progress=STOOD)
    if tables > 1:
        assert destination.apply([], before=place, until=place, entries_at=NO_ENTRIES) == Done()
        return
    with pytest.raises(PipelineError, match="changed as fast"):
        destination.apply([], before=place, until=place, entries_at=NO_ENTRIES)


def test_a_place_that_is_not_stored_for_a_stop_is_not_said_to_be() -> None:
    stopping = threading.Event()
    target: Any = ReplicaTarget(
        "p", config("mongodb://there/shop"), stopping=stopping, within=UNASKED
    )
    place = Place(pipeline="p", source="shop", collections=(), epoch=1, progress=STOOD)
    target._place, target._unsaved = place, structs.replace(place, progress=CAME)
    stopping.set()
    with pytest.raises(TargetStoppedError):
        target.save(1)
