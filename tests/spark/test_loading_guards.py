"""What a first load that has begun forbids, whatever the setting says now (decision 0034)."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from penstock.client.credentials import NOBODY
from penstock.errors import ConfigError, PipelineChangedError
from penstock.ports import Bounds
from penstock.sources.mongodb import MongoSource
from penstock.spark import run
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.load import first_load
from penstock.spark.loading.parts import DONE, READ, Part, Plan
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.run import run_pipeline
from penstock.spark.scheduled import Verification
from penstock.spark.table.standing import StandingTable
from penstock.spark.tables import TableTarget
from penstock.spark.verifying import verify_tables
from tests.mongodb.support import config as mongodb
from tests.spark.tables import LOG_ID, pipeline

HERE: Final = Bounds(
    log_id=LOG_ID, trimmed=0, trimmed_check=0, head=40, head_commit=40, head_check=1
)
_MISSING: Any = None


def test_steps_and_expectations_are_refused(tmp_path: Path) -> None:
    given = {"source": "shop", "path": str(tmp_path), "first_load": "source"}
    with pytest.raises(ValueError, match="without steps or expectations"):
        TablePipelineConfig.model_validate(
            {
                **given,
                "expect": [{"name": "e", "condition": "n > 0", "document_schema": "n INT"}],
            }
        )


def test_a_session_that_was_made_for_a_load_that_is_refused_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    def make(**_: object) -> SimpleNamespace:
        return SimpleNamespace(stop=lambda: stopped.append("stopped"))

    monkeypatch.setattr(run, "local_session", make)
    config = pipeline(tmp_path / "t", first_load="source")
    with pytest.raises(ConfigError, match="shop is none"):
        run_pipeline("p", config, "h:1", stop=threading.Event())
    assert stopped == ["stopped"]


def loaded(config: TablePipelineConfig, *, complete: bool) -> TablePipelineConfig:
    """The pipeline, its first load begun, without the setting."""
    whole = Part(database="db", collection="orders", state=DONE if complete else READ)
    plan = Plan(parts=(whole,))
    StoredPlan("p", config).write(plan, log_id=LOG_ID, sequence=0)
    return config.model_copy(update={"first_load": "off"})


def test_a_source_that_does_not_say_the_document_is_refused_before_a_place_is_kept(
    tmp_path: Path,
) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    opened = MongoSource("shop", mongodb("mongodb://h/?replicaSet=r", full_document="default"))
    with pytest.raises(ConfigError, match="updateLookup"):
        first_load("p", config, "h:1", _MISSING, lambda: opened, NOBODY)


def test_rows_that_were_loaded_are_never_compared_with_the_log_nor_repaired(
    tmp_path: Path,
) -> None:
    """The log does not tell them: repaired, the table would lose each of them."""
    config = loaded(pipeline(tmp_path / "t", first_load="source"), complete=True)
    with pytest.raises(ConfigError, match="first load, or had one"):
        verify_tables("p", config, "h:1", spark=_MISSING, repair=True)


def test_a_schedule_tells_once_that_loaded_rows_cannot_be_compared(tmp_path: Path) -> None:
    config = loaded(pipeline(tmp_path / "t", first_load="source"), complete=True)
    config = config.model_copy(update={"verify_every": 1.0})
    told: list[Verification] = []
    service = SimpleNamespace(verified=told.append)
    target = TableTarget("p", config)
    here = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    makes: Any = run._Runner  # pyright: ignore[reportPrivateUsage]
    runner = makes(*("p", config, "h:1", here, None, None, None, target), NOBODY, service, "", None)
    with capture_logs() as logs:
        assert runner.schedule() is None
    assert [one["event"].partition(":")[0] for one in logs] == [
        "tables are not compared with the log"
    ]
    assert [one.code for one in told] == ["config"]


def test_a_load_that_is_taken_out_before_it_is_complete_stops_the_pipeline(
    tmp_path: Path,
) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    standing = StandingTable(config, "p")
    place = standing.start(HERE).after
    standing.settle()
    off = loaded(config, complete=False)
    with pytest.raises(PipelineChangedError, match=r"first load is not complete.*set first_load"):
        TableTarget("p", off).start(HERE)
    loaded(config, complete=True)
    assert TableTarget("p", off).start(HERE) == place
