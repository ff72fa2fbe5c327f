"""bloop's stream engine, as it is sold: it walks the shards' lineage and keeps a token."""

import json
from pathlib import Path
from typing import Any, ClassVar

import bloop
import pytest

from penstock.store.shards import ShardLimits
from tests.children import Child
from tests.cli.service import COMMAND
from tests.serve.dynamodb.support import Clients, Served, served
from tests.store.support import SetClock

_bloop: Any = bloop
LIMITS = ShardLimits(age_seconds=3600, bytes_max=600)


Base: Any = _bloop.BaseModel


class User(Base):  # type: ignore[misc]
    """A model whose stream has both images."""

    class Meta:
        table_name = "users"
        stream: ClassVar[Any] = {"include": {"new", "old"}}

    id = _bloop.Column(_bloop.String, hash_key=True)
    visits = _bloop.Column(_bloop.Integer)


def engine(everything: Served) -> Any:
    made = _bloop.Engine(dynamodb=everything.client, dynamodbstreams=everything.streams)
    made.bind(User)
    return made


def read(stream: Any, *, empty: int = 3) -> list[tuple[str | None, str | None]]:
    """What the stream gives until it gives nothing some times: the items before and after."""
    found = list[tuple[str | None, str | None]]()
    left = empty
    while left:
        record = next(stream)
        if record is None:
            left -= 1
            continue
        left = empty
        old, new = record["old"], record["new"]
        found.append(
            (
                old and f"{old.id}={getattr(old, 'visits', None)}",
                new and f"{new.id}={getattr(new, 'visits', None)}",
            )
        )
    return found


@pytest.mark.slow
def test_it_follows_a_stream_across_shards_and_a_restart(tmp_path: Path) -> None:
    clock = SetClock()
    expected = list[tuple[str | None, str | None]]()

    def write(everything: Served, numbers: range) -> None:
        users = engine(everything)
        for number in numbers:
            users.save(User(id=f"u{number}", visits=number))
            expected.append((None, f"u{number}={number}"))
            user = User(id=f"u{number}", visits=number + 1)
            users.save(user)
            expected.append((f"u{number}={number}", f"u{number}={number + 1}"))
            if number % 3 == 0:
                users.delete(user)
                expected.append((f"u{number}={number + 1}", None))

    with served(tmp_path, clock=clock, shards=LIMITS) as everything:
        stream = engine(everything).stream(User, "trim_horizon")
        write(everything, range(10))
        arn = everything.client.describe_table(TableName="users")["Table"]["LatestStreamArn"]
        shards = len(everything.shards(arn))
        assert shards > 2
        found = read(stream)
        assert found == expected
        token = stream.token
    with served(tmp_path, clock=clock, shards=LIMITS) as everything:
        write(everything, range(10, 20))
        assert len(everything.shards(arn)) > shards
        stream = engine(everything).stream(User, "latest")
        stream.move_to(token)
        found += read(stream)
        assert found == expected


class Process:
    """`penstock store serve --dynamodb`, which always listens at the same address."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        options = ("--dynamodb-shard-bytes", "1KiB", "--dynamodb", self.address, "--json")
        self._child = Child(*COMMAND, "store", "serve", self._store, *options)
        self.address = json.loads(self._child.line())["dynamodb"].removeprefix("http://")

    def kill(self) -> None:
        with self._child:
            pass


@pytest.mark.slow
def test_it_follows_a_stream_through_servers_that_are_killed(tmp_path: Path) -> None:
    """kill -9, and the server starts again: no record is missing, and none comes twice."""
    process = Process(tmp_path / "store")
    clients = Clients(process.address)
    found, expected = list[tuple[str | None, str | None]](), list[tuple[str | None, str | None]]()
    try:
        users = _bloop.Engine(dynamodb=clients.client, dynamodbstreams=clients.streams)
        users.bind(User)
        stream = users.stream(User, "trim_horizon")
        token = stream.token
        for number in range(60):
            users.save(User(id=f"u{number}", visits=number))
            expected.append((None, f"u{number}={number}"))
            if number % 10 == 5:
                # bloop repeats records of a token that is taken while it holds some of a shard
                # that ended: so it has none.
                found += read(stream)
                assert found == expected
                token = stream.token
            if number % 10 == 9:
                process.kill()
                process.start()
                stream = users.stream(User, "latest")
                stream.move_to(token)
        found += read(stream)
        assert found == expected
        arn = clients.client.describe_table(TableName="users")["Table"]["LatestStreamArn"]
        assert len(clients.shards(arn)) > 2
    finally:
        process.kill()
        clients.close()


@pytest.mark.slow
@pytest.mark.parametrize("position", ["latest", "trim_horizon"])
def test_it_begins_where_it_is_told(tmp_path: Path, position: str) -> None:
    with served(tmp_path, clock=SetClock()) as everything:
        users = engine(everything)
        users.save(User(id="before", visits=1))
        stream = users.stream(User, position)
        read(stream, empty=1)
        stream.heartbeat()
        users.save(User(id="after", visits=1))
        assert read(stream)[-1] == (None, "after=1")
