"""A table that its owner altered is written rightly, or refused by the name of what was done."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.errors import TableRefusedError
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.delta import Table
from penstock.spark.table.features import WRITABLE, refusal, unwritable
from penstock.spark.table.upkeep import tidy
from tests.spark.histories import history
from tests.spark.tables import Entries, apply, change, pipeline, put, rejects_of, rows_of

Action = dict[str, Any]


def altered(path: Path, *actions: Action) -> None:
    """A commit as another writer's ALTER TABLE makes it."""
    said: Action = {"commitInfo": {"timestamp": 1, "operation": "ALTER", "operationParameters": {}}}
    at = DeltaTable(str(path)).version() + 1
    text = "".join(f"{json.dumps(one)}\n" for one in (said, *actions))
    (path / "_delta_log" / f"{at:020d}.json").write_text(text)


def protocol(*features: str) -> Action:
    """What the table needs of its writers from now on."""
    named = ["appendOnly", "invariants", *features]
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": named}}


def with_properties(path: Path, **properties: str) -> Action:
    """The table's metadata with these properties too; `_` in a name is a dot."""
    log = sorted((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for one in log for line in one.read_text().splitlines()]
    last: Action = [one for one in actions if "metaData" in one][-1]
    known = last["metaData"]["configuration"]
    known |= {f"delta.{name.replace('_', '.')}": value for name, value in properties.items()}
    return last


@pytest.fixture
def config(tmp_path: Path) -> TablePipelineConfig:
    """Of a table that has a row."""
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, n=1))
    apply(entries.table(), config)
    return config


def further(config: TablePipelineConfig, *, n: int = 5) -> None:
    """A batch with a new row and a change of the one that there is."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=n), change(1, "replace", {"_id": 1, "n": 2}))
    apply(entries.table(1), config, batch_id=1)


@pytest.mark.parametrize(
    "features",
    [
        ["domainMetadata", "clustering"],
        ["domainMetadata", "rowTracking"],
        ["identityColumns"],
        ["inCommitTimestamp"],
        ["allowColumnDefaults"],
        ["checkpointProtection"],
        ["icebergCompatV1"],
        ["neverHeardOf"],
    ],
)
def test_a_feature_that_cannot_be_written_is_named_with_the_way_out(
    config: TablePipelineConfig, features: list[str]
) -> None:
    path = Path(config.path)
    altered(path, protocol(*features))
    before, rows = DeltaTable(config.path).version(), rows_of(path)
    with pytest.raises(TableRefusedError) as refused:
        further(config)
    assert all(name in str(refused.value) for name in (config.path, *features, "DROP FEATURE"))
    assert (DeltaTable(config.path).version(), rows_of(path)) == (before, rows)
    found = tidy("altered", config, Table(config.path))
    assert found.failed == (
        "joining files: pipeline.table_refused; deleting replaced files: pipeline.table_refused"
    )


@pytest.mark.parametrize("feature", sorted(WRITABLE - {"deletionVectors", "v2Checkpoint"}))
def test_what_delta_rs_writes_with_is_written(config: TablePipelineConfig, feature: str) -> None:
    said = protocol(feature)
    if feature in {"timestampNtz", "variantType", "variantType-preview"}:
        said["protocol"] |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    altered(Path(config.path), said)
    further(config)
    assert len(rows_of(config.path)) == 2


def test_columns_that_are_called_otherwise_in_the_files_are_not_written() -> None:
    on = {"delta.columnMapping.mode": "name"}
    assert unwritable(["appendOnly", "columnMapping"], on) == ["columnMapping"]
    assert unwritable(["columnMapping"], {"delta.columnMapping.mode": "none"}) == []
    assert "CLUSTER BY NONE" in refusal(["clustering", "domainMetadata"])


@pytest.mark.parametrize("to", ["table", "history"])
def test_a_row_that_does_not_meet_a_constraint_is_rejected_and_the_others_are_written(
    to: str, tmp_path: Path
) -> None:
    """Null does not meet one; a delete has none to meet, and a stale row is healed."""
    config: Any = (history if to == "history" else pipeline)(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, n=1), put(9, n=9))
    apply(entries.table(), config)
    altered(
        tmp_path / "t",
        protocol("checkConstraints"),
        with_properties(tmp_path / "t", constraints_small="n < 100", constraints_set="n > 0"),
    )
    entries.commit(put(2, n=2), put(3, n=300), put(4, m=1), change(9, "delete"))
    entries.commit(change(1, "replace", {"_id": 1, "n": 0}))
    assert apply(entries.table(2), config, batch_id=1).rejected == 3
    found = {row["key"]: row["reason"] for row in rejects_of(tmp_path / "t")}
    assert found == {
        '{"_id":3}': "the row does not meet the table's constraint small (n < 100)",
        '{"_id":4}': "the row does not meet the table's constraint set (n > 0)",
        '{"_id":1}': "the row does not meet the table's constraint set (n > 0)",
    }
    entries.commit(change(1, "replace", {"_id": 1, "n": 7}))
    assert apply(entries.table(7), config, batch_id=2).rejected == 0
    rows = DeltaTable(config.path).to_pyarrow_table().to_pylist()
    if to == "history":
        rows = [row for row in rows if row["_current"]]
    assert sorted((row["_key"], row["n"]) for row in rows) == [
        ('{"_id":1}', 7),
        ('{"_id":2}', 2),
    ]


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"appendOnly": "true"}, "append-only (delta.appendOnly)"),
        # Of a column that is not the documents', which is not asked before the commit.
        ({"constraints_small": "_sequence < 2"}, "small (_sequence < 2)"),
    ],
)
def test_a_table_that_does_not_take_the_rows_says_why_and_quotes_none(
    config: TablePipelineConfig, properties: dict[str, str], named: str
) -> None:
    path = Path(config.path)
    altered(path, protocol("checkConstraints"), with_properties(path, **properties))
    with pytest.raises(TableRefusedError) as refused:
        further(config, n=4711)
    assert named in str(refused.value)
    assert "4711" not in str(refused.value)
    assert len(rows_of(config.path)) == 1
