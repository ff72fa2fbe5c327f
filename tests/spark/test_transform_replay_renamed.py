"""Rejects of rows that were renamed since: none is settled while its row lacks it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.delta import Table
from penstock.spark.table.rejects import SUPERSEDED
from penstock.spark.table.standing import StandingTable
from penstock.spark.transform import replay
from penstock.spark.transform.fate import Fate, Row, decide
from penstock.spark.transform.replay import Replay
from tests.spark.elements import exploding, items_of
from tests.spark.stepped import MemoryLog
from tests.spark.tables import (
    LOG_ID,
    Entries,
    apply,
    change,
    fold,
    pipeline,
    put,
    rejects_of,
    rows_of,
    schema_event,
)

M: dict[str, Any] = {"update": {"updatedFields": {"m": 7}}}


@pytest.fixture
def config(tmp_path: Path) -> TablePipelineConfig:
    return pipeline(tmp_path, "orders", "archive")


class Logs:
    """A log of which changes are rejected, and what it is with the steps of today."""

    def __init__(self) -> None:
        self.entries, self.mended = Entries(), Entries()

    def commit(self, key: object, n: object, *more: Any) -> None:
        """A whole row; with n = "x" it is rejected, until it is mended."""
        for log, value in ((self.entries, n), (self.mended, 5 if n == "x" else n)):
            log.commit(put(key, n=value, m=0), *more)

    def both(self, event: Any) -> None:
        for log in (self.entries, self.mended):
            log.commit(event)

    def rename(self, old: str = "orders", new: str = "archive", **more: Any) -> None:
        to = {"db": more.pop("to", "db"), "coll": new}
        self.both(schema_event("rename", collection=old, to=to, **more))


@pytest.fixture
def logs() -> Logs:
    return Logs()


def applied(logs: Logs, config: TablePipelineConfig, after: int = 0) -> None:
    """Each entry in a batch of its own."""
    for at in range(after, logs.entries.head):
        apply(logs.entries.table(at, at + 1), config, batch_id=at)


def replayed(log: Entries, config: TablePipelineConfig, trimmed: int = 0) -> dict[int, str]:
    return {
        one.sequence: one.state for one in Replay("p", config, MemoryLog(log, trimmed), None).run()
    }


def without_spark(_: object, entries: pa.Table, **__: object) -> tuple[pa.Table, dict[int, str]]:
    """The entries with no step done."""
    return entries, {}


def marks(path: Path | str) -> list[tuple[int, int | None]]:
    """Each row's `_sequence` and `_rejected_sequence`."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return [(row["_sequence"], row["_rejected_sequence"]) for row in rows]


@pytest.mark.parametrize("later", [False, True])
def test_a_renamed_row_is_replayed_where_it_is(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path, later: bool
) -> None:
    """With what was rejected under either name, or not at all."""
    logs.commit(1, 1)
    logs.commit(1, "x")  # 2
    logs.rename()  # 3
    pending = [2]
    if later:
        logs.both(change(1, "update", collection="archive", **M))  # 4, which builds on 2
        pending = [2, 4]
    applied(logs, config)
    before = rows_of(tmp_path / "archive"), marks(tmp_path / "archive")
    assert before[1] == [(3, pending[-1])]
    for log, trimmed in ((logs.entries, 0), (logs.mended, 2), (logs.mended, 3)):
        assert replayed(log, config, trimmed) == dict.fromkeys(pending, "left")
        assert (rows_of(tmp_path / "archive"), marks(tmp_path / "archive")) == before
    states = ["superseded", "replayed"][-len(pending) :]
    assert replayed(logs.mended, config) == dict(zip(pending, states, strict=True))
    assert rows_of(tmp_path / "archive") == fold(logs.mended.table(), "archive")
    assert marks(tmp_path / "archive") == [(max(3, pending[-1]), None)]
    assert rows_of(tmp_path / "orders") == {}
    assert replayed(logs.mended, config) == {}


def test_an_insert_that_was_rejected_before_a_rename_is_replayed_behind_it(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path
) -> None:
    logs.commit(1, 1)
    logs.both(change(1, "delete"))
    logs.commit(2, "x")  # 3
    logs.rename()
    applied(logs, config)
    assert replayed(logs.mended, config, 3) == {3: "left"}
    assert replayed(logs.mended, config) == {3: "replayed"}
    assert rows_of(tmp_path / "orders") == {}
    assert rows_of(tmp_path / "archive") == {("db", '{"_id":2}'): {"_id": 2, "n": 5, "m": 0}}


@pytest.mark.parametrize("end", ["drop", "dropDatabase", "away", "replaced"])
def test_what_ends_a_renamed_row_settles_its_rejects(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path, end: str
) -> None:
    logs.commit(1, 1)
    logs.commit(1, "x")  # 2
    logs.rename()
    if end == "away":
        logs.rename("archive", "attic")
    elif end == "replaced":
        logs.commit(2, 2)
        logs.rename()
    else:
        logs.both(schema_event(end, collection="" if end == "dropDatabase" else "archive"))
    applied(logs, config)
    assert replayed(logs.mended, config, 3) == {2: "left"}
    assert replayed(logs.mended, config) == {2: "superseded"}
    left = {("db", '{"_id":2}'): {"_id": 2, "n": 2, "m": 0}} if end == "replaced" else {}
    assert rows_of(tmp_path / "archive") == left


OTHERS: list[dict[str, Any]] = [
    {"collections": ("archive", "lines")},
    {
        "collections": ("orders", "archive"),
        "transform": [{"drop": ["z"], "collections": ["orders"]}],
    },
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_rename_that_a_pipeline_would_not_follow_any_more_settles_nothing(
    logs: Logs,
    config: TablePipelineConfig,
    tmp_path: Path,
    other: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did when it was applied: the row is there, and lacks what was rejected."""
    monkeypatch.setattr(replay, "through", without_spark)
    logs.commit(1, 1)
    logs.commit(1, "x")  # 2
    logs.rename()
    logs.both(change(1, "update", collection="archive", **M))  # 4
    applied(logs, config)
    before = rows_of(tmp_path / "archive"), marks(tmp_path / "archive")
    now = TablePipelineConfig(source="shop", path=str(tmp_path), **other)
    assert replayed(logs.mended, now) == {2: "left", 4: "left"}
    assert (rows_of(tmp_path / "archive"), marks(tmp_path / "archive")) == before


@pytest.mark.slow
def test_a_row_of_its_old_name_settles_no_reject_of_a_renamed_one(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path
) -> None:
    """Nor where the log no longer has the rename."""
    logs.commit(1, 1)
    logs.commit(1, "x")  # 2
    logs.rename()
    logs.commit(1, 4)  # 4
    logs.both(schema_event("drop"))
    logs.commit(1, 6)  # 6
    applied(logs, config)
    for trimmed in (2, 3, 4, 5):
        found = Replay("p", config, MemoryLog(logs.mended, trimmed), None).run()
        assert [(one.sequence, one.state) for one in found] == [(2, "left")]
        assert "no longer" in found[0].reason
    assert replayed(logs.mended, config) == {2: "replayed"}
    for name in ("orders", "archive"):
        assert rows_of(tmp_path / name) == fold(logs.mended.table(), name)


def test_a_row_that_was_moved_to_another_database_is_replayed_there(
    logs: Logs, tmp_path: Path
) -> None:
    """Within its table."""
    config = pipeline(tmp_path / "t")
    logs.commit(1, 1)
    logs.commit(1, "x")  # 2
    logs.commit(2, "x")  # 3
    logs.rename(new="orders", to="other")
    applied(logs, config)
    assert replayed(logs.mended, config) == {2: "replayed", 3: "replayed"}
    assert rows_of(config.path) == fold(logs.mended.table())
    assert {own[0] for own in rows_of(config.path)} == {"other"}


@pytest.mark.slow
def test_a_rename_that_is_half_done_takes_what_is_replayed_along(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new name's table has the rows, and the old one's still: the old ones go."""
    logs.commit(1, 1)
    logs.commit(1, "x")  # 2
    applied(logs, config)
    logs.rename()
    empty = Table.empty

    def power_cut(self: Table, predicate: str, stamp: Any) -> None:
        if self.path.endswith("orders"):
            raise KeyboardInterrupt
        empty(self, predicate, stamp)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "empty", power_cut)
        with pytest.raises(KeyboardInterrupt):
            applied(logs, config, 2)
    assert rows_of(tmp_path / "orders").keys() == rows_of(tmp_path / "archive").keys() != set()
    assert replayed(logs.mended, config) == {2: "replayed"}
    applied(logs, config, 2)
    assert rows_of(tmp_path / "orders") == {}
    assert rows_of(tmp_path / "archive") == fold(logs.mended.table(), "archive")


@pytest.mark.slow
def test_a_row_that_fits_its_new_table_no_more_is_settled_by_what_becomes_of_it_there(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path
) -> None:
    """And by nothing that comes under the old name."""
    logs.both(change(9, "insert", {"_id": 9, "n": "text"}, collection="archive"))
    logs.commit(1, 1)
    logs.rename()  # 3, which rejects the row
    logs.commit(1, 2)
    logs.both(schema_event("drop"))
    logs.commit(1, 3)
    applied(logs, config)
    (reject,) = rejects_of(tmp_path)
    assert (reject["sequence"], reject["key"]) == (3, '{"_id":1}')
    for trimmed in (0, 2, 3, 4):
        assert replayed(logs.entries, config, trimmed) == {3: "left"}
    # As if a step of today made a text of the number.
    texts = Entries()
    texts.commit(change(9, "insert", {"_id": 9, "n": "text"}, collection="archive"))
    texts.commit(put(1, n="1", m=0))
    texts.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    assert replayed(texts, config) == {3: "replayed"}
    assert rows_of(tmp_path / "archive") == fold(texts.table(), "archive")
    assert marks(tmp_path / "archive") == [(3, None)]


def test_the_elements_of_a_renamed_document_are_replayed_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, and those that it has no more are gone."""
    monkeypatch.setattr(replay, "through", without_spark)
    config = exploding(tmp_path, "orders", "archive")
    logs = Logs()
    for log, bad in ((logs.entries, "x"), (logs.mended, 8)):
        log.commit(put(1, items=[1, 2, 3]))
        log.commit(put(1, items=[7, bad]))  # 2
        log.commit(put(2, items=[bad]))  # 3
    logs.rename()
    applied(logs, config)
    assert items_of(tmp_path / "archive") == {'{"_id":1}': [1, 2, 3]}
    assert replayed(logs.entries, config) == {2: "left", 3: "left"}
    assert replayed(logs.mended, config) == {2: "replayed", 3: "replayed"}
    assert items_of(tmp_path / "archive") == {'{"_id":1}': [7, 8], '{"_id":2}': [8]}
    assert marks(tmp_path / "archive") == [(4, None)] * 3


def test_what_changed_no_row_of_a_table_has_come_to_it_all_the_same(
    logs: Logs, config: TablePipelineConfig, tmp_path: Path
) -> None:
    """A drop of a table without rows: where the pipeline stands says that it is behind it."""
    logs.commit(1, 1)
    logs.both(change(1, "delete"))
    logs.commit(2, "x")  # 3
    logs.both(schema_event("drop"))
    applied(logs, config)
    head = logs.entries.head
    bounds = Bounds(
        log_id=LOG_ID,
        trimmed=0,
        trimmed_check=0,
        head=head,
        head_commit=head,
        head_check=0,
        ancestors=(),
    )
    standing = StandingTable(config, "p")
    standing.start(bounds)
    standing.advance(Progress(LOG_ID, head, 0), {"orders": 3}, batch_id=0)
    assert replayed(logs.mended, config) == {3: "superseded"}
    assert rows_of(tmp_path / "orders") == {}


def test_a_reject_that_the_log_says_nothing_of_is_not_settled_by_its_name() -> None:
    """Its row may have another one by now; but it is itself that the row is at, if it is."""
    row = Row(sequence=5, rejected=None)
    assert decide([2], row=row, applied=9, known_from=3, others=[]).states == {2: SUPERSEDED}
    unknown = decide([2, 5], row=row, applied=9, known_from=4, others=[])
    assert unknown.states == {5: "replayed"}
    assert "no longer" in unknown.reason
    moved = decide(
        [2], row=Row(sequence=5, rejected=2), applied=9, known_from=1, others=[], moved=True
    )
    assert moved == Fate(tried=(2,))
