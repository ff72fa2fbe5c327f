"""What is to come of each commit, from the log's own columns."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from penstock.audit.packing import Tally
from penstock.client.flight import LogClient, ReadRequest
from penstock.event import AnyEvent, SchemaEvent
from penstock.extjson import encode
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.spark.tallies import tallies_of
from tests.flight.blocks import BlockLog, gap, insert


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def client(log: BlockLog) -> Iterator[LogClient]:
    server = FlightServer(log)
    server.start()
    with LogClient(server.address) as made:
        yield made
    server.stop()


def renamed() -> AnyEvent:
    like = insert(1, collection="old")
    said: dict[str, Any] = {
        name: getattr(like, name) for name in structs.asdict(gap()) if hasattr(like, name)
    }
    said |= {"operation": "rename", "description": encode({"to": "orders"})}
    return SchemaEvent(**said)


def place(log: BlockLog, sequence: int) -> Progress:
    return Progress(log.log_id, sequence, 0)


def tallied(log: BlockLog, client: LogClient, *names: str, after: int = 0) -> list[Tally]:
    ends = {"after": place(log, after), "until": place(log, log.head)}
    return list(tallies_of(client, **ends, source="shop", names=[f"shop/{name}" for name in names]))


def filled(log: BlockLog) -> None:
    """Commits of several blocks, of three collections and another source."""
    dice = random.Random(7)

    def one(number: int) -> AnyEvent:
        chosen = dice.choices(range(6), (6, 6, 6, 1, 1, 1))[0]
        if chosen < 3:
            return insert(number, collection=("orders", "lines", "x/y")[chosen])
        return (gap(), renamed(), insert(number, source="other"))[chosen - 3]

    for _ in range(40):
        log.append([[one(number) for number in range(dice.choice([1, 2, 5, 30]))]])


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
@pytest.mark.parametrize("names", [(), ("orders",), ("lines", "x/y"), ("none",)])
def test_it_is_what_a_read_with_the_filter_gives(
    log: BlockLog,
    client: LogClient,
    names: tuple[str, ...],
    batch_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decided twice, by the service and here: one that lost an entry would differ."""
    asked = partial(ReadRequest, batch_bytes=batch_bytes)
    monkeypatch.setattr("penstock.spark.tallies.ReadRequest", asked)
    filled(log)
    request = ReadRequest(
        log_id=log.log_id,
        after=0,
        until=log.head,
        source="shop",
        collections=tuple(f"shop/{name}" for name in names),
        columns=("commit", "check"),
    )
    found: dict[int, Tally] = {}
    for batch in client.read(request):
        for row in batch.to_pylist():
            was = found.get(row["commit"], Tally(row["commit"], 0))
            assert was.rows is not None
            digest = (was.digest + row["check"]) % (1 << 64)
            found[was.commit] = Tally(was.commit, was.rows + 1, digest)
    assert tallied(log, client, *names) == list(found.values())
    assert found


def test_what_retention_took_is_said_to_be_unknown(log: BlockLog, client: LogClient) -> None:
    log.append([[insert(n) for n in range(3)] for _ in range(10)])
    whole = tallied(log, client)
    log.trim(10)
    assert tallied(log, client) == [Tally(4, None), *whole[4:]]
    assert tallied(log, client, after=20)[1:] == whole[7:]
    log.trim(30)
    assert [one.rows for one in tallied(log, client)] == [None]
    log.append([[insert(31, source="other")]])
    (unknown,) = tallied(log, client)
    assert unknown.rows is None
    assert unknown.commit > whole[-1].commit, "of none that was read before it was removed"
