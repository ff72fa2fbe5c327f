"""`penstock pipeline tidy`: fewer files and the same rows, for every destination that has files."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.cli.config import load
from penstock.spark.config import (
    ChangelogPipelineConfig,
    HistoryPipelineConfig,
    TablePipelineConfig,
    ViewPipelineConfig,
)
from penstock.spark.table.delta import Table
from penstock.spark.views import tables_of
from tests.cli.service import SHOP, configure, penstock
from tests.spark.changelogs import add, expected, rows_of, started
from tests.spark.histories import versions_of
from tests.spark.tables import Entries, apply, put

_PIPELINES = """
[pipelines.rows]
source = "shop"
collections = ["orders"]
path = "rows"
[pipelines.versions]
source = "shop"
collections = ["orders"]
to = "history"
path = "versions"
[pipelines.changes]
source = "shop"
to = "changelog"
path = "changes"
[pipelines.files]
source = "shop"
to = "changelog"
format = "parquet"
path = "files"
[pipelines.totals]
source = "shop"
to = "view"
path = "totals"
query = "SELECT sum(n) AS n FROM orders"
[pipelines.trail]
source = "shop"
to = "audit"
uri = "mongodb://127.0.0.1"
database = "audit"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return configure(tmp_path, SHOP.format(rate=0) + _PIPELINES)


def written(config: Path) -> Entries:
    """Six batches in the destinations of all pipelines."""
    entries, pipelines = Entries(), load(config).pipelines
    for number in range(6):
        entries.commit(put(number, n=number), put(0, n=number))
        for name, one in pipelines.items():
            if isinstance(one, TablePipelineConfig | HistoryPipelineConfig):
                apply(entries.table(2 * number), one, name=name)
            elif isinstance(one, ViewPipelineConfig):
                apply(entries.table(2 * number), tables_of(one), name=name)
            elif isinstance(one, ChangelogPipelineConfig):
                add(started(one, name=name), entries.table(2 * number))
    return entries


def files_in(path: Path) -> int:
    return len(DeltaTable(path).file_uris())


@pytest.mark.slow
def test_small_files_are_joined_and_every_row_stays(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P18. Plain files are nobody's to join: their manifest is tidied."""
    entries = written(config)
    tables = {"rows": "rows", "versions": "versions", "changes": "changes"}
    tables |= {"files": "files_manifest", "totals": "totals_state"}
    before = {name: files_in(tmp_path / table) for name, table in tables.items()}
    rows = DeltaTable(tmp_path / "rows").to_pyarrow_table().to_pylist()
    versions = versions_of(tmp_path / "versions")
    plain = sorted((tmp_path / "files").rglob("*.parquet"))
    for name, table in tables.items():
        done = penstock(capsys, "pipeline", "tidy", name, "--json", "--config", str(config))
        assert done.code == 0, done.err
        said = {one["path"]: one for one in map(json.loads, done.out.splitlines())}
        one = said[str(tmp_path / table)]
        after = files_in(tmp_path / table)
        assert before[name] - one["joined"] + one["into"] == after, name
        # Nothing is old enough to be deleted.
        assert {one["deleted"] for one in said.values()} == {0}
    assert [files_in(tmp_path / tables[name]) for name in ("changes", "files")] == [1, 1]
    assert files_in(tmp_path / "versions") < before["versions"]
    assert DeltaTable(tmp_path / "rows").to_pyarrow_table().to_pylist() == rows
    assert len(versions_of(tmp_path / "versions")) == len(versions)
    assert sorted((tmp_path / "files").rglob("*.parquet")) == plain
    pipelines = load(config).pipelines
    for name in ("changes", "files"):
        one = pipelines[name]
        assert isinstance(one, ChangelogPipelineConfig)
        assert rows_of(one) == expected(entries.table())


@pytest.mark.slow
def test_for_people_it_is_a_table_and_what_cannot_be_tidied_is_said(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = penstock(capsys, "pipeline", "tidy", "changes", "--config", str(config))
    assert (done.code, done.out) == (0, "There are no tables yet.\n")
    for name, why in (("trail", "has no files to tidy"), ("chnges", "no [pipelines.chnges]")):
        done = penstock(capsys, "pipeline", "tidy", name, "--config", str(config))
        assert done.code == 2
        assert why in done.err
    written(config)
    done = penstock(capsys, "pipeline", "tidy", "changes", "--config", str(config))
    assert done.code == 0
    assert "joined" in done.out

    def fail(_: Table) -> None:
        raise OSError

    monkeypatch.setattr(Table, "compact", fail)
    done = penstock(capsys, "pipeline", "tidy", "rows", "--config", str(config))
    assert done.code == 7
    assert "could not be tidied: joining files: OSError. Their rows are as they were." in done.err
