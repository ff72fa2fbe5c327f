"""What is kept apart of a view is what was said last, whatever else is done to its table."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs

from penstock.spark.config import ViewPipelineConfig
from penstock.spark.table.committing import commit
from penstock.spark.table.delta import Table
from penstock.spark.view.apart import ApartRow, ApartTable


def test_rows_that_are_kept_apart_are_no_others_though_files_are_joined_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"to": "view", "source": "shop", "path": str(tmp_path), "query": "SELECT 1 FROM orders"}
    table = ApartTable("p", ViewPipelineConfig.model_validate(said))
    row = ApartRow(
        collection="orders", key="a", source="shop", database="db", sequence=1, reason="why"
    )

    def behind_tidying(delta: DeltaTable, act: Any) -> None:
        for _ in range(2):
            write_deltalake(table.path, DeltaTable(table.path).to_pyarrow_table(), mode="append")
        delta.update_incremental()
        assert Table(table.path).compact()[0] > 1
        commit(delta, act)

    table.write([row])
    monkeypatch.setattr("penstock.spark.view.apart.commit", behind_tidying)
    table.write([structs.replace(row, key="b")])
    rows = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    assert [one["key"] for one in rows] == ["b"]
