"""docs/how-to/functions.md: what it shows works as it stands."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.spark import functions
from penstock.spark.transform.replay import signed
from penstock.wire import to_arrow
from tests.children import MODULE, Child
from tests.flight.blocks import BlockLog
from tests.spark.cluster import ROOT, Certified
from tests.spark.stories import Row, current_of, told_by
from tests.spark.tables import change, fold, put, rows_of, schema_event
from tests_support.servers import DELTA, ServerUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "functions.md").read_text()


def program(number: int, endpoint: str, folder: Path) -> str:
    """A block of the page, for this service and this folder."""
    code: str = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    assert "127.0.0.1:50052" in code
    code = code.replace("127.0.0.1:50052", endpoint)
    return re.sub(r'"(checkpoints|lake)/', rf'"{folder}/\1/', code)


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def whole(log: BlockLog) -> pa.Table:
    return pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])


def test_the_page_has_every_function_and_links_to_pages_that_are_there() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    assert told >= set(functions.__all__)
    for page in re.findall(r"\]\(([\w./-]+\.md)", PAGE):
        assert (ROOT / "docs" / "how-to" / page).exists()


@pytest.mark.slow
def test_totals_are_those_of_the_current_rows(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    price = '{"_id":%d,"status":"%s","total":{"$numberDecimal":"%s"}}'
    told = [(1, "paid", "1.10"), (2, "paid", "2.00"), (3, "draft", "5.55")]
    log.append([[change(one[0], "insert", text=price % one) for one in told]])
    log.append([[change(3, "delete"), put(9)]])
    log.append([[change(1, "update", update={"updatedFields": {"status": "open"}})]])
    ran: dict[str, Any] = {"spark": spark}
    exec(program(0, endpoint, tmp_path), ran)
    rows = ran["totals"].toArrow().to_pylist()
    assert {tuple(map(str, row.values())) for row in rows} == {
        ("open", "1.10"),
        ("paid", "2.00"),
        ("None", "None"),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_merge_makes_the_current_rows_batch_by_batch(
    log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """P25: also of updates without a document, which build on rows that only the table has."""
    try:
        DELTA.paths()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    (tmp_path / "program.py").write_text(program(1, endpoint, tmp_path))
    with Child(
        *(*MODULE, "tests.spark.composed", tmp_path),
        cwd=ROOT,
        env=Certified(tmp_path).environment(tmp_path),
        stdin=subprocess.PIPE,
    ) as running:
        for seed in (2, 3, 4):
            append(log, told_by(seed, events=("drop",), collections=["orders", "carts"]))
            running.write("")
            while not (line := running.line()).startswith("["):
                assert not running.ended(), running.tail()
            rows: list[Row] = json.loads(line)
            expected = current_of(signed(whole(log)), collections=["orders"])
            assert by_key(rows) == by_key(expected)
            assert expected
        running.close_stdin()
        running.wait()


def append(log: BlockLog, commits: Sequence[Sequence[AnyEvent]]) -> None:
    log.append([list(events) for events in commits])


def by_key(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    return {
        (row["database"], row["key"]): {**row, "document": json.loads(row["document"])}
        for row in rows
    }


@pytest.mark.slow
def test_a_program_keeps_tables(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    to = {"db": "db", "coll": "customers"}
    told: list[list[list[AnyEvent]]] = [
        [[put(1, n=1), put(2, n=2)]],
        [[change(1, "delete"), put(3)], [schema_event("rename", to=to)], [put(4)]],
    ]
    for commits in told:
        log.append(commits)
        exec(program(2, endpoint, tmp_path), {"spark": spark})
        for collection in ("orders", "customers"):
            path = tmp_path / "lake" / "shop" / collection
            assert (rows_of(path) if path.exists() else {}) == fold(whole(log), collection)
    assert rows_of(tmp_path / "lake" / "shop" / "customers")
