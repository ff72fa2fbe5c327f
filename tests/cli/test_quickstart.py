"""What the quickstart promises: the tables equal the shop, and a difference would be seen."""

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.progress import Progress

from penstock.cli.compare import compare
from penstock.cli.config import load
from penstock.cli.shopkeeper import Shopkeeper
from penstock.cli.tail import oldest
from penstock.cli.walkthrough import Run, prepare
from penstock.client import follow_sync
from penstock.errors import ConfigError, PipelineError
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from penstock.store import StoreClosedError
from tests.cli.service import SHOP, Service, configure, penstock, spawn
from tests.waiting import wait_until

DOCUMENTS: list[dict[str, Any]] = [
    {
        "_id": 1,
        "total": {"$numberDecimal": "2.50"},
        "tags": ["b", "a"],
        "at": {"$date": "2026-01-01T00:00:00.010Z"},
    },
    {"_id": 2, "total": 10, "tags": [], "at": {"$date": "2026-01-01T00:00:01.000Z"}},
]


def table(
    path: Path, *, total: str = "2.500000000000000000", ids: tuple[int, ...] = (2, 1)
) -> Path:
    """The documents as a pipeline would store them, in another order."""
    rows = {
        1: ("1", total, '["b","a"]', 1_767_225_600_010_000),
        2: ("2", "10.000000000000000000", "[]", 1_767_225_601_000_000),
    }
    cells = [rows[number] for number in ids]
    write_deltalake(
        str(path),
        pa.table(
            {
                "_key": [f'{{"_id":{row[0]}}}' for row in cells],
                "_sequence": pa.array([7] * len(cells), pa.int64()),
                "_id": pa.array([int(row[0]) for row in cells], pa.int32()),
                "total": pa.array([row[1] for row in cells]).cast(pa.decimal128(38, 18)),
                "tags": [row[2] for row in cells],
                "at": pa.array([row[3] for row in cells], pa.timestamp("us", "UTC")),
            }
        ),
    )
    return path


def test_a_table_that_says_the_same_is_equal_whatever_its_order(tmp_path: Path) -> None:
    found = compare("orders", DOCUMENTS, table(tmp_path / "t"), columns=["_id", "total"])
    assert found.equal
    assert found.source_rows == found.table_rows == 2
    assert sorted(found.sample) == [["1", "2.5", "same"], ["2", "10", "same"]]


@pytest.mark.parametrize(
    ("total", "ids"),
    [
        ("2.500000000000000001", (1, 2)),  # one digit of one value
        ("2.500000000000000000", (1,)),  # a row is missing
        ("2.500000000000000000", (1, 2, 2)),  # a row is there twice
    ],
)
def test_a_table_that_differs_in_anything_is_not_equal(
    tmp_path: Path, total: str, ids: tuple[int, ...]
) -> None:
    assert not compare("orders", DOCUMENTS, table(tmp_path / "t", total=total, ids=ids)).equal


def test_a_folder_that_is_not_a_quickstart_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--folder"):
        prepare(tmp_path)
    (tmp_path / "penstock.toml").write_text("[log]")
    with pytest.raises(ConfigError, match="Nothing was changed"):
        prepare(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_quickstart_starts_anew_in_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "q"
    config = prepare(folder)
    (folder / "lake").mkdir()
    (folder / "shop.store").mkdir()
    (folder / "mine.txt").write_text("mine")
    assert prepare(folder) == config
    assert not (folder / "lake").exists()
    assert not (folder / "shop.store").exists()
    assert (folder / "mine.txt").exists()


@pytest.mark.slow
def test_a_pipeline_that_fails_while_the_shop_is_silent_ends_the_quickstart_with_its_error(
    tmp_path: Path,
) -> None:
    shop = SHOP.format(rate=0).replace('"script"', '"script"\ntransactions = 3')
    progress = Progress(disable=True)
    told, merged = progress.add_task("told"), progress.add_task("merged")

    def fail() -> None:
        """Once the reader has the two changes that will ever come, and waits for more."""
        wait_until(lambda: progress.tasks[told].completed >= 2)
        raise PipelineError("the target cannot be written. Nothing of the batch was written.")

    run = Run(load(prepare(tmp_path / "quickstart")), progress, transactions=1000)
    with Service(configure(tmp_path, shop), "--one-process") as service:
        changes = follow_sync(service.ready["grpc"], after=oldest(service.ready["flight"]))
        with pytest.raises(PipelineError, match="cannot be written"):
            run.follow_during(fail, changes, told, merged)
    assert "quickstart-tail" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
def test_a_shop_that_cannot_go_on_ends_the_quickstart_with_its_error(tmp_path: Path) -> None:
    progress = Progress(disable=True)
    told, merged = progress.add_task("told"), progress.add_task("merged")
    run = Run(load(prepare(tmp_path / "quickstart")), progress, transactions=3)

    def fail(_: int) -> None:
        raise StoreClosedError

    def until_stopped() -> None:
        run.stop.wait()

    with (
        Service(configure(tmp_path, SHOP.format(rate=1)), "--one-process") as service,
        closing(
            Shopkeeper(
                tmp_path / "shop.store",
                transactions=3,
                on_commit=fail,
                on_end=lambda changes: run.on_written(changes, told, merged),
            )
        ) as shop,
    ):
        shop.start()
        changes = follow_sync(service.ready["grpc"], after=oldest(service.ready["flight"]))
        with pytest.raises(StoreClosedError):
            run.follow_during(until_stopped, changes, told, merged)


@pytest.mark.spark
def test_the_whole_way_ends_in_tables_that_equal_the_shop_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "quickstart"
    done = spawn("quickstart", "--folder", str(folder), "--transactions", "300", "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["ok"] is True
    assert {one["collection"] for one in said["tables"]} == {"customers", "orders", "order_lines"}
    assert all(one["sourceRows"] > 0 for one in said["tables"])
    running = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(folder) in _content(path)
    ]
    assert running == []


@pytest.mark.spark
@pytest.mark.soak
def test_a_pipeline_runs_once_and_status_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(
        tmp_path,
        SHOP.format(rate=0).replace('"script"', '"script"\ntransactions = 300')
        + '[pipelines.orders]\nsource = "shop"\ncollections = ["orders"]\npath = "lake/orders"\n',
    )
    with Service(config, "--one-process") as service:
        done = spawn(
            *("pipeline", "run", "orders", "--once", "--json", "--config", str(config)),
            *("--endpoint", service.ready["flight"]),
        )
        assert done.code == 0, done.err
        applied = max(json.loads(line)["sequence"] for line in done.out.splitlines())
        assert applied > 0
        said = penstock(capsys, "status", "--config", str(config), "--json")
    (source,) = json.loads(said.out)["sources"]
    assert source["state"] == "finished"
    truth = ScriptSource("shop", ScriptSourceConfig()).shop.state_at(300)["orders"]
    rows = [json.loads(document) for document in truth.values()]
    assert compare("orders", rows, tmp_path / "lake" / "orders").equal
    after = json.loads(penstock(capsys, "status", "--config", str(config), "--json").out)
    (pipeline,) = after["pipelines"]
    assert pipeline["name"] == "orders"
    assert pipeline["lagEvents"] == after["log"]["head"] - pipeline["sequence"]


def test_a_pipeline_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(
        tmp_path,
        SHOP.format(rate=0) + '[pipelines.orders]\nsource = "shop"\npath = "lake/orders"\n',
    )
    done = penstock(capsys, "pipeline", "run", "order", "--config", str(config))
    assert done.code == 2
    assert "did you mean orders?" in done.err


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
