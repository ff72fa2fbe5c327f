"""Exactly once through kill -9 of everything: each destination is the fold of the source's story.

A source tells transactions over several collections, whatever happens to who reads them, while the
driver, its executors, the service and the databases that are destinations are killed at random. The
seed is printed; PENSTOCK_SEED repeats a run's choices (the moments remain the machine's).
"""

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.client.flight import LogClient, ReadRequest
from penstock.event import Kind
from penstock.sources.script import COLLECTIONS, ScriptSource, ScriptSourceConfig, Shop
from penstock.spark.config import ChangelogPipelineConfig, LakePipelineConfig
from penstock.spark.table.arrow import compute
from penstock.spark.table.standing import StandingTable
from tests.seeds import seed_of
from tests.spark import changelogs, histories
from tests.spark.kills import NAMES, SOURCE, VICTIMS, Deployment, deployment
from tests.spark.tables import Document, fold, rows_of
from tests.waiting import wait_until
from tests_support.servers import (
    MongoReplicaSet,
    PostgresServer,
    ServerUnavailableError,
    SparkCluster,
)

Rows = dict[str, dict[Any, Document]]
"""By collection and key: the current rows."""

_STORY = [Kind.DATA, Kind.SCHEMA]
"""What a source tells; the rest is said by capture."""


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkCluster | None]:
    if request.param == 0:
        yield None
        return
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # the driver's word to its executors
    try:
        with SparkCluster(workers=request.param) as running:
            yield running
    except ServerUnavailableError as error:
        pytest.skip(str(error))


_LONG = (pytest.mark.soak, pytest.mark.timeout(0))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("cluster", "kills"),
    [
        pytest.param(0, 1, id="here", marks=pytest.mark.timeout(1500)),
        pytest.param(2, 3, id="cluster", marks=_LONG),
        pytest.param(0, 20, id="here-20", marks=_LONG),
        pytest.param(2, 20, id="cluster-20", marks=_LONG),
    ],
    indirect=["cluster"],
)
def test_every_destination_is_the_fold_of_the_source_after_kill_9_of_everything(
    cluster: SparkCluster | None,
    start_postgres: Callable[..., PostgresServer],
    start_mongo: Callable[..., MongoReplicaSet],
    tmp_path: Path,
    kills: int,
) -> None:
    """Invariants 1, 2, 3 and 7."""
    dice = random.Random(seed_of("kills"))
    plan = list(VICTIMS) * kills
    dice.shuffle(plan)
    postgres = start_postgres(options=["fsync=on"])
    with deployment(cluster, postgres, start_mongo(), tmp_path, dice) as deployed:
        for victim in plan:
            # Driven by what was applied and not by a clock, a slow machine kills as often in the
            # middle of things as a fast one. A driver is not always killed while it starts.
            one = dice.choice(NAMES)
            wanted = {one: deployed.batches(one) + dice.randrange(1, 4)}
            if victim == "driver":
                wanted = dict.fromkeys(NAMES, 1)
            for name, batches in wanted.items():
                wait_until(
                    partial(applied, deployed, name, batches),
                    f"{name} to go on",
                    diagnose=deployed.driver.tail,
                    moving=partial(deployed.batches, name),
                )
            deployed.kill(victim)
            print(f"killed {victim}", flush=True)
        told = deployed.end()
        with LogClient(deployed.flight) as client:
            bounds = client.bounds()
            request = ReadRequest(log_id=bounds.log_id, after=0, until=bounds.head)
            log = pa.Table.from_batches(client.read(request))
        assert deployed.service.stop() == 0
        print(f"kills {deployed.kills}, transactions {told}, entries {log.num_rows}")
        shop = ScriptSource(SOURCE, ScriptSourceConfig(seed=deployed.seed)).shop
        check_log(log, shop, told)
        check(deployed, log)


def applied(deployed: Deployment, pipeline: str, batches: int) -> bool:
    return deployed.batches(pipeline) >= batches


# --- what must be ---------------------------------------------------------------------------------


def check_log(log: pa.Table, shop: Shop, told: int) -> None:
    """The log is the source's story, each event once and in order; and so is its fold."""
    story = [event for n in range(told) for event in shop.transaction(n + 1).events]
    captured = log.filter(compute.is_in(log["kind"], pa.array(_STORY)))
    assert captured["event_id"].to_pylist() == [event.event_id for event in story]
    for name, documents in shop.state_at(told).items():
        assert texts(fold(of(log, name)).values()) == texts(
            json.loads(one) for one in documents.values()
        )


def check(deployed: Deployment, log: pa.Table) -> None:
    """Every destination, and the place that it says it is at."""
    rows = {name: fold(of(log, name)) for name in COLLECTIONS}
    for name, config in deployed.pipelines.items():
        path = Path(getattr(config, "path", ""))
        match name:
            case "table":
                check_table(path, rows)
            case "history":
                check_history(path, log)
            case "changelog":
                assert isinstance(config, ChangelogPipelineConfig)
                assert changelogs.rows_of(config) == changelogs.expected(log)
            case "view":
                assert view(path) == expected_view(rows)
            case "postgres":
                check_postgres(deployed, rows)
            case "mongodb":
                check_mongodb(deployed, rows)
            case _:
                check_trail(deployed.trail(), log)
    assert not [path for path in deployed.folder.glob("*_rejects") if path.exists()]
    check_places(deployed, head=log.num_rows)


def check_table(path: Path, rows: Rows) -> None:
    for name, expected in rows.items():
        assert texts({"key": own, **row} for own, row in rows_of(path / name).items()) == texts(
            {"key": own, **row} for own, row in expected.items()
        )


def check_history(path: Path, log: pa.Table) -> None:
    for name in COLLECTIONS:
        versions = histories.Model().take(of(log, name)).versions
        assert texts(histories.versions_of(path / name)) == texts(versions)


def check_postgres(deployed: Deployment, rows: Rows) -> None:
    replica = deployed.postgres
    for name, expected in rows.items():
        found = [
            {column: value for column, value in row.items() if value is not None}
            for row in replica.ask(f'SELECT * FROM "{name}"')
        ]
        assert texts(found) == texts(map(replica.expected, expected.values()))
    assert replica.rejects() == []


def check_mongodb(deployed: Deployment, rows: Rows) -> None:
    replica = deployed.mongo
    for name, expected in rows.items():
        found = list(replica.database[name].find())
        if name == "order_lines":
            # Its key has two fields, which are an `_id` to MongoDB.
            for one in found:
                assert one.pop("_id") == {"order": one["order"], "line": one["line"]}
        assert texts(found) == texts(map(replica.expected, expected.values()))
    assert replica.rejects() == []


def check_trail(records: list[Document], log: pa.Table) -> None:
    """Every change and schema event, once, in order, in its transaction."""
    kept = log.filter(compute.is_in(log["kind"], pa.array(_STORY)))
    assert [record["at"] for record in records] == list(range(1, len(records) + 1))
    assert [(one["src"]["event"], one["seq"], one["txn"]["size"]) for one in records] == list(
        zip(
            *(kept[name].to_pylist() for name in ("event_id", "ordinal", "commit_rows")),
            strict=True,
        )
    )


def check_places(deployed: Deployment, *, head: int) -> None:
    """Where each destination says that it is."""
    for name, config in deployed.pipelines.items():
        if isinstance(config, LakePipelineConfig):
            standing = StandingTable(config, name).read()
            assert standing is not None
            assert standing.progress.sequence == head, name
    if "postgres" in deployed.pipelines:
        (kept,) = deployed.postgres.ask("SELECT sequence FROM _penstock_pipelines")
        assert kept["sequence"] == head
    if "mongodb" in deployed.pipelines:
        (kept,) = deployed.mongo.database["_penstock_pipelines"].find()
        assert kept["sequence"] == head


def of(log: pa.Table, collection: str) -> pa.Table:
    return log.filter(compute.equal(log["collection"], collection))


def texts(documents: Any) -> list[str]:
    """In an order, and comparable: a column of decimals has one scale, and a number has none."""
    return sorted(
        json.dumps(_one_scale(one), sort_keys=True, default=_text_of) for one in documents
    )


def _one_scale(value: Any) -> Any:
    """The value with its decimals as numbers, however many zeros end them."""
    match value:
        case {"$numberDecimal": str(text)}:
            return _text_of(Decimal(text))
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: _one_scale(one) for name, one in fields.items()}
        case _:
            return value


def _text_of(value: object) -> str:
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def view(path: Path) -> dict[Any, tuple[Any, ...]]:
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return {row["rating"]: (row["orders"], row["total"], row["least"], row["last"]) for row in rows}


def expected_view(rows: Rows) -> dict[Any, tuple[Any, ...]]:
    """The query, by hand."""
    ratings = {one["_id"]: one["rating"] for one in rows["customers"].values()}
    groups: dict[Any, list[Document]] = defaultdict(list)
    for one in rows["orders"].values():
        groups[ratings.get(one["customer"])].append(one)
    return {
        rating: (
            len(own),
            sum(one["total"] for one in own),
            min(one["total"] for one in own),
            max(one["status"] for one in own),
        )
        for rating, own in groups.items()
    }
