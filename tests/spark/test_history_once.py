"""A history is written once, whatever happens, and within its limits."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import BatchTooLargeError
from penstock.spark.history.batch import HistoryWriter
from penstock.spark.history.delta import VersionTable
from penstock.spark.table.chunk import Collected, join
from penstock.spark.table.upkeep import tidy
from tests.spark.histories import SPAN, Model, history, in_order, rows, versions_of
from tests.spark.tables import (
    Entries,
    apply,
    change,
    put,
    rejects_of,
    version_of,
)


def test_a_batch_that_comes_again_or_tells_what_is_known_writes_nothing(tmp_path: Path) -> None:
    entries, config = Entries(), history(tmp_path / "t")
    entries.commit(put(1, n=1), put(1, n=2))
    first = apply(entries.table(), config)
    assert (first.rows, first.tables) == (2, {"orders": 2})
    version = version_of(tmp_path / "t")
    again = apply(entries.table(), config, batch_id=99)
    assert (again.rows, again.tables) == (0, {"orders": 2})
    assert version_of(tmp_path / "t") == version
    writer = HistoryWriter(
        pipeline="p", config=config, log_id=1, batch_id=1, entries_at=lambda _: pa.table({})
    )
    empty = Collected(chunk=join([]), after=0, entries=0)
    nothing = writer.apply(empty, before=lambda _: empty)
    assert (nothing.rows, nothing.sequence) == (0, 0)
    entries.commit(put(1, n=2))
    repeated = apply(entries.table(2), config)
    assert (repeated.rows, repeated.tables) == (0, {"orders": 3})


def test_a_crash_between_the_rejects_and_the_table_ends_as_if_there_was_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    entries = Entries()
    entries.commit(put(1, n=1))
    apply(entries.table(), history(path))
    entries.commit(put(1, n="x"), put(2, n=2))

    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(VersionTable, "put", power_cut)
        with pytest.raises(KeyboardInterrupt):
            apply(entries.table(), history(path))
    assert [row["sequence"] for row in rejects_of(path)] == [2]
    apply(entries.table(), history(path))
    assert [row["sequence"] for row in rejects_of(path)] == [2]
    assert rows(path, "_rejected_sequence", *SPAN) == [
        (2, 1, 1, None, True),
        (None, 2, 3, None, True),
    ]


@pytest.mark.slow
def test_tidying_keeps_all_versions_and_users_may_delete_what_is_closed(tmp_path: Path) -> None:
    """P18: partitions whose names begin with an underscore are not taken for hidden folders."""
    path = tmp_path / "t"
    entries = Entries()
    for number in range(6):
        entries.commit(put(1, n=number))
        apply(entries.table(number), history(path))
    assert tidy("p", history(path), VersionTable(str(path))).failed == ""
    assert [row[0] for row in rows(path, "n")] == list(range(6))
    replaced = DeltaTable(str(path)).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=True
    )
    assert any("_current=true" in file for file in replaced)
    DeltaTable(str(path)).delete("NOT _current AND _from_sequence < 4")
    entries.commit(put(1, n=6))
    apply(entries.table(), history(path))
    assert [row[0] for row in rows(path, "n")] == [3, 4, 5, 6]


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_key_with_most_of_a_batch_and_a_giant_document(tmp_path: Path) -> None:
    """Every fourth change of the key tells nothing new."""
    entries = Entries()
    entries.commit(*(put(1, n=number // 2 + number % 4 // 2) for number in range(10_000)))
    entries.commit(put(2, blob="x" * 10_000_000), put(2, blob="y" * 10_000_000), put(3, n=1))
    for name, edges in (("whole", [0, 10_003]), ("cut", [0, 10_000, 10_003])):
        for after, until in itertools.pairwise(edges):
            apply(entries.table(after, until), history(tmp_path / name), parts=3)
        assert in_order(versions_of(tmp_path / name)) == in_order(
            Model().take(entries.table()).versions
        )


def test_many_updates_that_build_on_one_another_are_a_version_each(tmp_path: Path) -> None:
    entries = Entries()
    update = [{"updatedFields": {"n": number}} for number in range(3000)]
    entries.commit(put(1, n=-1, name="x"))
    entries.commit(*(change(1, "update", update=one) for one in update))
    entries.commit(*(change(1, "update", update={"updatedFields": {"a.b": 1}}) for _ in range(9)))
    apply(entries.table(0, 1001 + 2000), history(tmp_path / "t"))
    apply(entries.table(), history(tmp_path / "t"))
    found = rows(tmp_path / "t", "n", "name", "_rejected_sequence")
    assert found == [(n, "x", None) for n in range(-1, 2999)] + [(2999, "x", 3002)]


def test_what_is_more_than_the_driver_may_hold_is_refused_by_name(tmp_path: Path) -> None:
    """Rows that are made from small updates count, and so do the open versions."""
    config = history(tmp_path / "t", max_bytes_per_batch=1 << 20)
    entries = Entries()
    entries.commit(put(1, n=0, name="x" * 10_000))
    apply(entries.table(), config)
    entries.commit(
        *(change(1, "update", update={"updatedFields": {"n": n}}) for n in range(1, 200))
    )
    with pytest.raises(BatchTooLargeError, match="max_bytes_per_batch"):
        apply(entries.table(1), config)
    assert rows(tmp_path / "t", *SPAN) == [(0, 1, None, True)]
    with pytest.raises(BatchTooLargeError):
        apply(entries.table(1), history(tmp_path / "t", max_bytes_per_batch=1000))
    apply(entries.table(1), history(tmp_path / "t"))
    assert len(rows(tmp_path / "t")) == 200
