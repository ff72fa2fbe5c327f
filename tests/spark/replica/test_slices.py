"""Many things, some at a time: each once, in order, and what belongs together stays together."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.replica import replaying
from penstock.spark.replica.documents import decode_bson
from penstock.spark.replica.replaying import row_slices
from penstock.spark.replica.slices import slices_of
from penstock.spark.table.reduce import DELETE
from tests.spark.replica.support import collected
from tests.spark.tables import Entries, change, put


@given(sizes=st.lists(st.integers(0, 12)), count=st.integers(1, 5))
def test_slices_are_no_more_than_they_may_be(sizes: list[int], count: int) -> None:
    slices = list(slices_of(sizes, lambda size: size, count_max=count, bytes_max=10))
    assert [one for held in slices for one in held] == sizes
    for held in slices:
        assert 1 <= len(held) <= count
        assert sum(held) <= 10 or len(held) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_row_has_all_its_changes_in_one_slice_and_those_that_go_come_first(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(replaying, "_ROWS", 4)
    dice, entries = random.Random(seed), Entries()
    for _ in range(dice.randrange(60)):
        key, act = dice.randrange(15), dice.randrange(4)
        if act == 0:
            entries.commit(change(key, "delete"))
        elif act == 1:
            entries.commit(change(key, "update", update={"updatedFields": {"n": 5}}))
        else:
            entries.commit(put(key, n=1))
    chunk = collected(entries.table(), decode_bson).chunk
    slices = [part.rows.to_pylist() for part in row_slices(chunk)]
    rows = [row for part in slices for row in part]
    assert sorted(row["sequence"] for row in rows) == chunk.sequences.tolist()
    going: list[bool] = []
    keys: list[str] = []
    for part in slices:
        assert [row["sequence"] for row in part] == sorted(row["sequence"] for row in part)
        firsts = {row["key"]: row["role"] for row in reversed(part)}
        keys += firsts
        last = max(sum(row["key"] == key for row in part) for key in firsts)
        assert len(part) < 4 + last
        going += sorted((role == DELETE for role in firsts.values()), reverse=True)
    assert len(set(keys)) == len(keys)
    assert going == sorted(going, reverse=True)


def test_large_rows_are_fewer_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "_BYTES", 10_000)
    entries = Entries()
    entries.commit(*(put(key, text="x" * 2000) for key in range(20)))
    slices = list(row_slices(collected(entries.table(), decode_bson).chunk))
    assert sum(part.rows.num_rows for part in slices) == 20
    assert max(part.rows.num_rows for part in slices) <= 5
