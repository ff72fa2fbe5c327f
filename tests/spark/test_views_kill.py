"""Killed at any moment, a pipeline's view ends as its query of the fold of the log."""

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.event import ChangeEvent
from penstock.serve.flight import FlightServer
from penstock.spark.table.arrow import compute
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.drivers import run_and_kill
from tests.spark.tables import change, fold

_KILLS = 8


def history(dice: random.Random) -> list[list[ChangeEvent]]:
    """Commits over two collections, of which one is joined to the other."""
    commits: list[list[ChangeEvent]] = []
    live: set[tuple[str, int]] = set()
    for _ in range(70):
        events: list[ChangeEvent] = []
        for _ in range(dice.randrange(1, 5)):
            own = collection, key = dice.choice(["orders", "orders", "lines"]), dice.randrange(30)
            if own in live and dice.random() < 0.25:
                events.append(change(key, "delete", collection=collection))
                live.discard(own)
                continue
            fields: dict[str, Any] = {"n": dice.randrange(20), "name": f"name {dice.randrange(40)}"}
            if collection == "lines":
                fields = {"kind": dice.choice(["a", "b", "c"])}
            document = {"_id": key, **fields}
            events.append(change(key, "replace", document, collection=collection))
            live.add(own)
        commits.append(events)
    return commits


def expected(entries: pa.Table) -> dict[Any, tuple[Any, ...]]:
    """The query of view_driver, by hand: without orders that it cannot be computed for."""
    rows = {
        name: {
            key: row
            for (_, key), row in fold(
                entries.filter(compute.equal(entries["collection"], name))
            ).items()
        }
        for name in ("orders", "lines")
    }
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for key, row in rows["orders"].items():
        if row["n"] == 0:
            continue
        groups[rows["lines"].get(key, {}).get("kind")].append(row)
    return {
        kind: (
            len(own),
            sum(row["n"] for row in own),
            min(row["n"] for row in own),
            max(row["name"] for row in own),
            sum(sorted(8 / row["n"] for row in own)),
        )
        for kind, own in groups.items()
    }


@pytest.mark.soak
@pytest.mark.spark
def test_a_driver_killed_at_any_moment_leaves_a_view_that_ends_right(tmp_path: Path) -> None:
    seed = seed_of("views-kill")
    dice = random.Random(seed)
    log = BlockLog(block_events=11)
    log.append(history(dice))
    server = FlightServer(log)
    server.start()
    command = ("tests.spark.view_driver", server.address, tmp_path / "v")
    try:
        run_and_kill(*command, dice=dice, kills=_KILLS, seconds_max=1.0)
    finally:
        server.stop()
    view = {
        row["kind"]: (row["orders"], row["n"], row["least"], row["last"], row["parts"])
        for row in DeltaTable(str(tmp_path / "v")).to_pyarrow_table().to_pylist()
    }
    assert view == expected(pa.Table.from_batches([to_arrow((block,)) for block in log.blocks]))
