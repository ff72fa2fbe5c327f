"""A table of versions says what every row was, from which change to which, however batches fall."""

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark.history.apply import Tracking, prepare
from penstock.spark.history.columns import IDENTITY, VERSION_COLUMNS
from penstock.spark.table import slices
from penstock.spark.table.arrow import compute
from penstock.spark.table.chunk import INPUT_COLUMNS, reduce_entries
from tests.seeds import cases
from tests.spark.histories import Model, history, in_order, logs, told, versions_of
from tests.spark.tables import Entries, apply, dotted, put

TRACKED = st.sampled_from(
    [((), ()), (("n",), ()), (("tags", "address"), ()), ((), ("n", "price")), ((), ("name",))]
)


def ends_of(entries: pa.Table) -> list[int]:
    """Where commits end."""
    rows = entries.select(["sequence", "ends_commit"]).to_pylist()
    return [row["sequence"] for row in rows if row["ends_commit"]]


class MemoryTable:
    """A table of versions that is not stored anywhere."""

    def __init__(self, tracking: Tracking) -> None:
        self._tracking = tracking
        self.versions = VERSION_COLUMNS.empty_table()
        self._applied = 0

    def apply(self, entries: pa.Table) -> None:
        """As a writer would, without events of collections."""
        chunk = reduce_entries(entries.select(INPUT_COLUMNS), every=True)
        chunk = chunk.take((chunk.sequences > self._applied).nonzero()[0])
        if not chunk.rows.num_rows:
            return
        schema: Any = pa.schema(
            [field for field in self.versions.schema if field.name not in VERSION_COLUMNS.names]
        )
        base = self.versions.filter(self.versions["_current"])
        base = base.filter(compute.is_in(base["_key"], chunk.rows["key"].combine_chunks()))
        write = prepare(chunk, schema=schema, base=base, tracking=self._tracking, bytes_max=1 << 30)
        assert write.rejects == []
        assert not write.widened
        given = {identity_of(row) for row in write.versions.to_pylist()}
        kept = [identity_of(row) not in given for row in self.versions.to_pylist()]
        assert write.fresh == all(kept)
        left = self.versions.filter(pa.array(kept, pa.bool_()))
        self.versions = pa.concat_tables([left, write.versions], promote_options="default")
        self._applied = chunk.last_sequence


def identity_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


@pytest.mark.slow
@given(entries=logs(schema_events=False), tracked=TRACKED, data=st.data())
@settings(max_examples=cases(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_versions_are_those_of_a_list_that_is_made_change_by_change(
    entries: Entries, tracked: Any, data: st.DataObject
) -> None:
    """Batches are cut anywhere between commits, repeated, overlapping, and old ones come again."""
    only, but = tracked
    table = MemoryTable(Tracking(columns=frozenset(only), except_columns=frozenset(but)))
    ends, reached = ends_of(entries.table()), 0
    while reached < entries.head:
        until = data.draw(st.sampled_from([end for end in ends if end > reached]))
        after = data.draw(st.sampled_from([end for end in [0, *ends] if end <= reached]))
        table.apply(entries.table(after, until))
        reached = until
        if data.draw(st.booleans()):
            table.apply(entries.table(0, data.draw(st.sampled_from(ends[: ends.index(until) + 1]))))
    model = Model(tracked=only, untracked=but).take(entries.table())
    assert in_order(told(table.versions)) == in_order(model.versions)


def test_a_field_whose_own_name_has_a_dot_is_none_of_an_object() -> None:
    entries, table = Entries(), MemoryTable(Tracking())
    entries.commit(put(1, a={"c": 2}))
    entries.commit(dotted(1))
    table.apply(entries.table())
    found = [one["document"] for one in told(table.versions)]
    row = {"_id": 1, "a": {"c": 2}}
    assert found == [row, {**row, "a.b": 1}]


@pytest.mark.slow
@given(entries=logs(schema_events=True), tracked=TRACKED, data=st.data())
@settings(max_examples=cases(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_delta_table_has_those_versions_with_drops_and_renames(
    tmp_path_factory: pytest.TempPathFactory,
    entries: Entries,
    tracked: Any,
    data: st.DataObject,
) -> None:
    """Invariant 7."""
    only, but = tracked
    path = tmp_path_factory.mktemp("history") / "orders"
    config = history(path, track_history_column_list=only, track_history_except_column_list=but)
    ends, reached = ends_of(entries.table()), 0
    while reached < entries.head:
        until = data.draw(st.sampled_from([end for end in ends if end > reached]))
        after = data.draw(st.sampled_from([end for end in [0, *ends] if end <= reached]))
        # A rename takes one commit, or one for each row.
        with patch.object(slices, "SLICE_BYTES_MAX", data.draw(st.sampled_from([1, 1 << 30]))):
            apply(entries.table(after, until), config, parts=data.draw(st.integers(1, 3)))
        reached = until
        if data.draw(st.booleans()):
            apply(entries.table(0, until), config)
    model = Model(tracked=only, untracked=but).take(entries.table())
    found = versions_of(path) if DeltaTable.is_deltatable(str(path)) else []
    assert in_order(found) == in_order(model.versions)
    assert not DeltaTable.is_deltatable(f"{path}_rejects")
