"""What a pipeline has committed to this machine's disk is there after a power cut."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.event import AnyEvent
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.table import lasting
from penstock.spark.table.lake import Folders
from penstock.spark.table.standing import StandingTable
from penstock.spark.table.upkeep import tidy
from tests.spark.histories import history
from tests.spark.tables import LOG_ID, Entries, apply, change, pipeline, put, schema_event

Kept = TablePipelineConfig | HistoryPipelineConfig


class Disk:
    """What of a folder's files a disk holds for certain."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._held: dict[Path, object] = {}
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self._sync)

    def _sync(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self._held[path] = _content(path)
        self._fsync(handle)

    @property
    def lost(self) -> list[str]:
        """What a power cut may take now."""
        there = [self._folder, *self._folder.rglob("*")]
        return [
            str(one.relative_to(self._folder))
            for one in there
            if self._held.get(one) != _content(one)
        ]


def _content(path: Path) -> object:
    return sorted(path.iterdir()) if path.is_dir() else path.read_bytes()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "lake").mkdir()
    return Disk(tmp_path / "lake", monkeypatch)


@pytest.mark.parametrize("make", [pipeline, history], ids=["table", "history"])
def test_whatever_a_batch_writes_is_held_before_where_it_stands_says_so(
    tmp_path: Path, disk: Disk, make: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a row could be missing from its table, and not be in the rejects either."""
    config = make(tmp_path / "lake" / "of all", "orders", "archive", rejects=None)
    bounds = Bounds(
        log_id=LOG_ID, trimmed=0, trimmed_check=0, head=99, head_commit=99, head_check=99,
        ancestors=(),
    )  # fmt: skip
    standing = StandingTable(config, "p")
    standing.start(bounds)
    save, unheld = StandingTable.save, list[list[str]]()

    def saved(self: StandingTable, *, batch_id: int) -> None:
        unheld.append(disk.lost)
        save(self, batch_id=batch_id)

    monkeypatch.setattr(StandingTable, "save", saved)
    entries = Entries()
    batches: list[tuple[AnyEvent, ...]] = [
        (put(1, n=1), put(2, n=2)),
        (put(1, n="two"), put(3, n=3)),  # one is rejected
        (put(4, n=4.5), change(2, "delete")),  # the column becomes wider
        (schema_event("rename", to={"db": "db", "coll": "archive"}),),
        (put(5, n=5),),
        (schema_event("drop"),),
    ]
    place = Progress(LOG_ID, 0, 0)
    for number, batch in enumerate(batches):
        entries.commit(*batch)
        result = apply(entries.table(place.sequence), config)
        place = Progress(LOG_ID, place.sequence + len(batch), 1)
        standing.advance(place, result.tables, batch_id=number)
    assert unheld == [[]] * len(batches)
    assert disk.lost == []
    table = DeltaTable(config.table_path("orders"))
    assert table.version() > 3
    tidy("p", config, Folders(config, "p").table("archive"), vacuum=False)
    assert disk.lost == []


def test_what_is_in_an_object_store_is_left_to_it() -> None:
    assert lasting.local_folder("s3://bucket/lake") is None
    assert lasting.local_folder("file:///a%20b/c") == Path("/a b/c")
    lasting.keep_commits("s3://bucket/lake", after=-1, until=3)
