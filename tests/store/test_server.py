"""A store's server: bounded, private, and fair to clients that are slow, gone or wrong."""

import asyncio
import json
import os
import select
import socket
import stat
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from penstock import store
from penstock.errors import ConfigError
from penstock.store import (
    Client,
    ConditionCheckFailedError,
    KeyType,
    OutcomeUnknownError,
    RefusedError,
    RequestTooLargeError,
    ResponseTooLargeError,
    Retention,
    ServerBusyError,
    ServerUnavailableError,
    Store,
    StoreClosedError,
    Transaction,
    TransactionError,
    TrimmedDataError,
    attr,
)
from penstock.store.remote.config import ServerConfig
from penstock.store.remote.server import StoreServer, serving
from tests.store.faces import opened_and_served, served
from tests.store.support import BOTH, with_table
from tests.waiting import PATIENCE_SECONDS, wait_until

NINES = 10**38 - 1


class Raw:
    """A connection as any program makes it."""

    def __init__(self, address: Path, *, receive_bytes: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(str(address))
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, line: bytes) -> None:
        self._socket.sendall(line + b"\n")

    def line(self) -> bytes:
        """The next line; empty at the end."""
        return self._lines.readline()

    def heard(self) -> bool:
        """Whether something was sent that was not read."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def ask(self, op: str, **request: Any) -> Any:
        """The answer to a request."""
        self.send(json.dumps({"op": op, **request}).encode())
        return json.loads(self.line())


@contextmanager
def table_served(
    folder: Path, config: ServerConfig | None = None, *, retention: Retention | None = None
) -> Generator[Path]:
    """The address of a server of a store with a table `t`, which has a stream."""
    with opened_and_served(folder, config=config) as address:
        with Client(address) as db:
            table = db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH)
            table.retention(retention or Retention()).execute()
        yield address


# --- the protocol ---------------------------------------------------------------------------------


def test_any_program_may_speak_it(tmp_path: Path) -> None:
    """The sheet's operations, in plain JSON and in DynamoDB's."""
    with opened_and_served(tmp_path) as address, Raw(address) as raw:
        made = raw.ask(
            "create_table",
            table="t",
            partition_key={"name": "id", "type": "S"},
            sort_key={"name": "n", "type": "N"},
            stream={"view": "NEW_AND_OLD_IMAGES"},
        )
        assert made == {"ok": True}
        item = {"id": "a", "n": NINES, "none": None}
        assert raw.ask("put_item", table="t", item=item) == {"ok": True}
        raw.send(b'{"op": "get_item", "table": "t", "key": {"id": "a", "n": %d}}' % NINES)
        assert b'"n":%d,' % NINES in raw.line()
        updated = raw.ask(
            "update_item",
            table="t",
            key={"id": {"S": "a"}, "n": {"N": str(NINES)}},
            updates=[
                {"action": "SET", "path": "tags", "value": {"BS": ["AA=="]}},
                {"action": "REMOVE", "path": "none"},
            ],
            return_values="ALL_NEW",
            values="dynamodb",
        )
        new = {"id": {"S": "a"}, "n": {"N": str(NINES)}, "tags": {"BS": ["AA=="]}}
        assert updated == {"ok": True, "new": new}
        queried = raw.ask(
            "query",
            table="t",
            partition_key="a",
            sort_key_condition={"op": "between", "low": 0, "high": NINES},
            filter={"AttributeExists": {"Attr": "tags"}},
            projection=["n"],
        )
        assert queried["items"] == [{"id": "a", "n": NINES}]
        records = raw.ask("get_stream_records", table="t", limit=1)
        assert records["records"][0]["new_image"] == item
        assert "old_image" not in records["records"][0]
        rest = raw.ask("get_stream_records", table="t", after=records["position"])
        assert rest["values"] == "dynamodb"
        assert rest["records"][0]["new_image"] == new
        info = raw.ask("get_stream_info", table="t")["info"]
        assert (info["records"], info["enabled"]) == (2, True)
        raw.ask("set_ttl", table="t", attribute="until")
        assert raw.ask("get_ttl", table="t") == {"ok": True, "attribute": "until"}
        raw.ask("remove_ttl", table="t")
        assert raw.ask("get_ttl", table="t") == {"ok": True, "attribute": None}
        assert raw.ask("sweep_expired_ttl") == {"ok": True, "removed": 0}
        assert raw.ask("count", table="t") == {"ok": True, "count": 1}
        assert raw.ask("list_tables") == {"ok": True, "tables": ["t"]}


def test_an_error_is_an_answer_and_the_connection_goes_on(tmp_path: Path) -> None:
    with table_served(tmp_path) as address, Raw(address) as raw:
        assert raw.ask("put_item", table="none", item={"id": "a"})["error"] == "TableNotFound"
        mismatch = raw.ask("put_item", table="t", item={"id": "a"}, expected_version=3)
        assert mismatch["error"] == "VersionMismatch"
        assert (mismatch["expected"], mismatch["actual"]) == (3, 0)
        deep: dict[str, Any] = {"Attr": "a"}
        for _ in range(40):
            deep = {"Not": deep}
        assert raw.ask("scan", table="t", filter=deep)["error"] == "InvalidCondition"
        raw.send(b"[" * 100_000)
        assert json.loads(raw.line())["error"] == "ValidationError"
        raw.send(
            b'{"op": "put_item", "table": "t", "item": %s1%s}' % (b"[" * 90_000, b"]" * 90_000)
        )
        assert json.loads(raw.line())["error"] == "ValidationError"
        raw.send(b"nonsense")
        assert json.loads(raw.line())["error"] == "ValidationError"
        assert raw.ask("commit_transaction")["code"] == "store.transaction"
        assert raw.ask("list_tables") == {"ok": True, "tables": ["t"]}


def test_an_error_shows_the_item_whatever_its_values_are(tmp_path: Path) -> None:
    """Plain JSON has no bytes: the item of a false condition comes as DynamoDB's."""
    with table_served(tmp_path) as address, Raw(address) as raw:
        item = {"id": {"S": "a"}, "raw": {"B": "AA=="}}
        assert raw.ask("put_item", table="t", item=item, values="dynamodb")["ok"]
        absent = {"AttributeNotExists": {"Attr": "id"}}
        failed = raw.ask("put_item", table="t", item={"id": "a"}, condition=absent)
        assert failed["error"] == "ConditionCheckFailed"
        assert (failed["values"], failed["item"]) == ("dynamodb", item)


def test_after_a_transaction_that_broke_the_connection_takes_nothing_more(tmp_path: Path) -> None:
    """What its client sends next was meant for the transaction."""
    config = ServerConfig(transaction_seconds_max=0.05)
    with table_served(tmp_path, config) as address:
        with Raw(address) as raw:
            assert raw.ask("begin_transaction") == {"ok": True}
            with Client(address) as other:
                other.put("t", {"id": "b"})
            # Both at once: after its answer to the first the server hangs up at any moment.
            one = b'{"op": "put_item", "table": "t", "item": {"id": "a"}}'
            raw.send(one + b"\n" + b'{"op": "put_item", "table": "t", "item": {"id": "c"}}')
            assert "was undone" in json.loads(raw.line())["message"]
            with suppress(ConnectionResetError):
                assert raw.line() == b""
        with Client(address) as db:
            assert db.scan("t").execute().items == [{"id": "b"}]


def test_after_a_defect_inside_a_transaction_the_connection_takes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("penstock.store.remote.holding.Held.ask", defect)
    with table_served(tmp_path) as address:
        with Raw(address) as raw:
            assert raw.ask("begin_transaction") == {"ok": True}
            assert raw.ask("put_item", table="t", item={"id": "a"})["error"] == "InternalError"
            with suppress(OSError):
                raw.send(b'{"op": "put_item", "table": "t", "item": {"id": "c"}}')
                assert raw.line() == b""
        with Client(address) as db:
            assert db.count("t") == 0


def test_a_defect_is_told_without_what_it_was_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not to the log: its error may show a document."""

    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Store, "list_tables", defect)
    with opened_and_served(tmp_path) as address, Raw(address) as raw:
        assert raw.ask("list_tables")["error"] == "InternalError"
        assert raw.ask("sweep_expired_ttl")["ok"]
    said = "".join(capsys.readouterr())
    assert "ZeroDivisionError" in said
    assert "secret" not in said


def test_a_list_of_actions_is_one_transaction(tmp_path: Path) -> None:
    with table_served(tmp_path) as address, Raw(address) as raw:
        actions: list[dict[str, Any]] = [
            {"op": "put_item", "table": "t", "item": {"id": "a", "n": 1}},
            {
                "op": "update_item",
                "table": "t",
                "key": {"id": "a"},
                "updates": [{"action": "ADD", "path": "n", "value": 1}],
                "return_values": "ALL_NEW",
            },
            {"op": "get_item", "table": "t", "key": {"id": "a"}},
        ]
        done = raw.ask("transact", actions=actions)
        assert done["answers"] == [
            {},
            {"new": {"id": "a", "n": 2}},
            {"item": {"id": "a", "n": 2}},
        ]
        check = {
            "op": "check_item",
            "table": "t",
            "key": {"id": "b"},
            "condition": {"AttributeExists": {"Attr": "id"}},
        }
        failed = raw.ask("transact", actions=[*actions, check])
        assert (failed["error"], failed["item"]) == ("ConditionCheckFailed", None)
        assert raw.ask("get_item", table="t", key={"id": "a"})["item"] == {"id": "a", "n": 2}
        assert raw.ask("transact", actions=[actions[2]] * 101)["error"] == "ValidationError"


# --- bounds ---------------------------------------------------------------------------------------


def test_a_request_over_the_limit_is_refused_and_nothing_of_it_is_done(tmp_path: Path) -> None:
    config = ServerConfig(request_bytes_max=4096)
    with table_served(tmp_path, config) as address, Client(address) as db:
        with pytest.raises(RequestTooLargeError, match="4096 bytes"):
            db.put("t", {"id": "a", "data": "x" * 300_000})
        assert db.get("t", {"id": "a"}) is None
        db.put("t", {"id": "a", "data": "x" * 3000})


@pytest.mark.slow
def test_the_largest_batch_fits_into_a_request(tmp_path: Path) -> None:
    with table_served(tmp_path) as address, Client(address) as db:
        data = b"\xff" * 409_000
        db.write_batch(puts=[("t", {"id": str(number), "data": data}) for number in range(25)])
        assert db.get("t", {"id": "24"}) == {"id": "24", "data": data}
        with pytest.raises(RefusedError, match="at most 25"):
            db.write_batch(puts=[("t", {"id": str(number)}) for number in range(26)])
        with pytest.raises(RefusedError, match="at most 1000"):
            db.batch_get("t", [{"id": "1"}] * 1001)
        with pytest.raises(ResponseTooLargeError, match="Ask for fewer"):
            db.batch_get("t", [{"id": "1"}] * 100)
        assert len(db.batch_get("t", [{"id": str(number)} for number in range(25)])) == 25


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": 1001},
        {"wait_ms": -1},
        {"wait_ms": 60_001},
        {"max_bytes": 0},
        {"max_bytes": (1 << 20) + 1},
        {"after": "x", "start": "latest"},
    ],
)
def test_a_page_of_a_stream_is_bounded(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with table_served(tmp_path) as address, Raw(address) as raw:
        assert raw.ask("get_stream_records", table="t", **wrong)["error"] == "ValidationError"


def test_one_client_too_many_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    with table_served(tmp_path, ServerConfig(connections_max=2)) as address:
        with Raw(address) as one, Raw(address) as two:
            assert one.ask("list_tables")["ok"]
            assert two.ask("list_tables")["ok"]
            with Client(address) as third, pytest.raises(ServerBusyError, match="2 connections"):
                third.list_tables()
            assert one.ask("list_tables")["ok"]
        wait_until(lambda: _answers(address))


def _answers(address: Path) -> bool:
    with suppress(ServerBusyError), Client(address) as db:
        db.list_tables()
        return True
    return False


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_undone_and_others_go_on(tmp_path: Path) -> None:
    config = ServerConfig(transaction_seconds_max=0.2)
    with table_served(tmp_path, config) as address, Client(address) as db, Client(address) as other:

        def takes_long() -> None:
            with db.transact() as slow:
                try:
                    slow.put("t", {"id": "slow"})
                finally:  # on a busy machine this one, too, may come too late
                    other.put("t", {"id": "other"})

        with pytest.raises(TransactionError, match=r"more than 0\.2 s"):
            takes_long()
        assert db.scan("t").execute().items == [{"id": "other"}]


def test_a_client_that_goes_inside_a_transaction_leaves_nothing_of_it(tmp_path: Path) -> None:
    with table_served(tmp_path) as address, Client(address) as db:
        with Raw(address) as raw:
            assert raw.ask("begin_transaction") == {"ok": True}
            assert raw.ask("put_item", table="t", item={"id": "gone"}) == {"ok": True}
            refused = raw.ask("list_tables")
            assert "only get_item" in refused["message"]
        db.put("t", {"id": "kept"})
        assert db.scan("t").execute().items == [{"id": "kept"}]


def test_an_operation_that_fails_inside_a_transaction_does_not_end_it(tmp_path: Path) -> None:
    with table_served(tmp_path) as address, Client(address) as db:
        with db.transact() as transaction:
            transaction.put("t", {"id": "a"})
            with pytest.raises(ConditionCheckFailedError):
                transaction.put("t", {"id": "b"}, condition=attr("id").exists())
        assert db.scan("t").execute().items == [{"id": "a"}]


# --- push -----------------------------------------------------------------------------------------


@asynccontextmanager
async def serving_table(
    folder: Path, config: ServerConfig, retention: Retention | None = None
) -> AsyncGenerator[tuple[Store, StoreServer, Path]]:
    """A server in this loop, with a look inside."""
    with store.open(folder / "store", sweep_seconds=None) as db:
        table = db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH)
        table.retention(retention or Retention()).execute()
        async with serving(db, folder / "s", config) as server:
            yield db, server, folder / "s"


async def test_a_slow_subscriber_waits_alone_in_bounded_memory_and_gets_everything_once(
    tmp_path: Path,
) -> None:
    """F14: it reads on from the store; nothing is dropped and nobody else is held up."""
    config = ServerConfig(outbox_bytes_max=1 << 14)
    async with serving_table(tmp_path, config) as (db, server, address):
        slow = await asyncio.to_thread(Raw, address, receive_bytes=4096)
        slow.send(b'{"op": "subscribe", "table": "t", "start": "trim_horizon"}')
        largest = 0
        for number in range(120):
            await asyncio.to_thread(db.put, "t", {"id": str(number), "data": "x" * 100_000})
            largest = max(largest, server.outbox_bytes)
            if number == 60:
                with Client(address) as other:
                    page = await asyncio.to_thread(other.get_stream_records("t").latest().execute)
                    assert page.records == []
        # A page of a MiB and the outbox, where 12 MB were written.
        assert 0 < largest < (3 << 20)

        def read() -> list[str]:
            found = list[str]()
            while len(found) < 120:
                found += [record["keys"]["id"] for record in json.loads(slow.line())["records"]]
            return found

        assert await asyncio.to_thread(read) == [str(number) for number in range(120)]
        slow.close()


async def test_a_slow_subscriber_that_retention_overtakes_is_told(tmp_path: Path) -> None:
    """F4, F14."""
    config = ServerConfig(outbox_bytes_max=1 << 14)
    retention = Retention(age_seconds=None, records_max=2)
    async with serving_table(tmp_path, config, retention) as (db, _, address):
        slow = await asyncio.to_thread(Raw, address, receive_bytes=4096)
        slow.send(b'{"op": "subscribe", "table": "t"}')
        assert (await asyncio.to_thread(slow.line)).startswith(b'{"ok":true')
        for number in range(60):
            await asyncio.to_thread(db.put, "t", {"id": str(number), "data": "x" * 300_000})

        def last() -> Any:
            line = slow.line()
            while "error" not in (said := json.loads(line)):
                line = slow.line()
            return said

        said = await asyncio.to_thread(last)
        assert said["error"] == "TrimmedDataAccess"
        assert said["trimmed"] > 0
        slow.close()


def test_a_follower_that_retention_overtook_raises_it(tmp_path: Path) -> None:
    """F4: over the socket as in the process."""
    retention = Retention(age_seconds=None, records_max=1)
    with table_served(tmp_path, retention=retention) as address, Client(address) as db:
        db.put("t", {"id": "a"})
        position = next(db.follow("t")).position
        for number in range(30):
            db.put("t", {"id": str(number)})
        with pytest.raises(TrimmedDataError) as trimmed:
            next(db.follow("t", after=position))
        assert trimmed.value.trimmed > 0


def test_a_subscriber_that_hangs_up_gives_its_place_free(tmp_path: Path) -> None:
    with table_served(tmp_path, ServerConfig(connections_max=1)) as address:
        wait_until(lambda: _subscribes(address))
        wait_until(lambda: _subscribes(address))


def _subscribes(address: Path) -> bool:
    with Raw(address) as raw, suppress(OSError):
        return "position" in raw.ask("subscribe", table="t")
    return False


# --- the socket -----------------------------------------------------------------------------------


def test_only_its_user_may_open_the_socket_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened_and_served(tmp_path) as address:
            assert stat.S_IMODE(address.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not address.exists()


def test_the_socket_of_a_dead_server_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    address = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(address))
    with store.open(tmp_path / "store", sweep_seconds=None) as db:
        with served(db, address):
            with Client(address) as client:
                assert client.list_tables() == []
            with pytest.raises(ConfigError, match="another process listens"), served(db, address):
                pass
            with Client(address) as client:
                assert client.list_tables() == []
        address.write_text("a letter")
        with pytest.raises(ConfigError, match="is no socket"), served(db, address):
            pass
        assert address.read_text() == "a letter"
        with pytest.raises(ConfigError, match="at most 107"), served(db, tmp_path / ("x" * 100)):
            pass


# --- the end of a server, and clients after it ----------------------------------------------------


def test_a_stop_answers_what_is_under_way_and_tells_who_waits(tmp_path: Path) -> None:
    with store.open(tmp_path / "store", sweep_seconds=None) as db:
        with_table(db)
        with served(db, tmp_path / "s", ServerConfig(stop_seconds_max=3600)):
            idle, waits, subscribed = (Raw(tmp_path / "s") for _ in range(3))
            assert idle.ask("list_tables")["ok"]
            assert waits.ask("begin_transaction")["ok"]
            waits.send(b'{"op": "put_item", "table": "t", "item": {"id": "a"}}')
            assert subscribed.ask("subscribe", table="t")["ok"]
            # Its commit is on the way while the server stops.
            assert json.loads(waits.line()) == {"ok": True}
            waits.send(b'{"op": "commit_transaction"}')
        assert json.loads(waits.line()) == {"ok": True}
        assert db.get("t", {"id": "a"}) == {"id": "a"}
        assert json.loads(idle.line())["error"] == "ServerStopping"
        lines = [json.loads(line) for line in iter(subscribed.line, b"")]
        assert lines[-1]["error"] == "ServerStopping"
        for raw in (idle, waits, subscribed):
            assert raw.line() == b""
            raw.close()


@pytest.mark.slow
@pytest.mark.parametrize("commits", [False, True])
async def test_a_stop_does_not_say_of_a_write_that_is_kept_that_it_was_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """Its client would ask again, and what is added would be added twice."""
    entered, go, finish = threading.Event(), threading.Event(), Transaction.finish

    def late(transaction: Transaction) -> None:
        entered.set()
        go.wait()
        finish(transaction)

    monkeypatch.setattr(Transaction, "finish", late)

    def ask(address: Path) -> None:
        with Client(address) as db:
            if not commits:
                db.update("t", {"id": "a"}).add("n", 1).execute()
                return
            with db.transact() as transaction:
                transaction.put("t", {"id": "a", "n": 1})

    async with AsyncExitStack() as stack:
        config = ServerConfig(stop_seconds_max=0.01)
        db = stack.enter_context(store.open(tmp_path / "store", sweep_seconds=None))
        with_table(db)
        server = await stack.enter_async_context(serving(db, tmp_path / "s", config))
        asked = asyncio.ensure_future(asyncio.to_thread(ask, tmp_path / "s"))
        stack.callback(go.set)
        await asyncio.to_thread(entered.wait)
        stopping = asyncio.ensure_future(server.stop())
        loop = asyncio.get_running_loop()

        def given_up() -> bool:
            return asked.done() or any(task.cancelling() for task in asyncio.all_tasks(loop))

        await asyncio.to_thread(wait_until, given_up)
        go.set()
        await stopping
        with pytest.raises(OutcomeUnknownError):
            await asked
        assert db.get("t", {"id": "a"}) == {"id": "a", "n": 1}


def test_a_client_that_reads_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    config = ServerConfig(stop_seconds_max=0.1, outbox_bytes_max=1)
    with table_served(tmp_path, config) as address:
        with Client(address) as db:
            db.put("t", {"id": "a", "data": "x" * 400_000})
        raw = Raw(address, receive_bytes=4096)
        raw.send(
            json.dumps({"op": "batch_get_item", "table": "t", "keys": [{"id": "a"}] * 30}).encode()
        )
        wait_until(raw.heard)
    raw.close()


def test_a_client_says_that_nobody_answers_and_goes_on_once_somebody_does(tmp_path: Path) -> None:
    address = tmp_path / "s"
    with (
        store.open(tmp_path / "store", sweep_seconds=None) as db,
        Client(address, timeout_seconds=PATIENCE_SECONDS) as client,
    ):
        with_table(db)
        with pytest.raises(ServerUnavailableError, match="penstock store serve"):
            client.list_tables()
        with pytest.raises(ServerUnavailableError):
            next(client.follow("t"))
        with served(db, address):
            client.put("t", {"id": "a"})
            following = client.follow("t")
            assert next(following).keys == {"id": "a"}
        with pytest.raises(ServerUnavailableError), client.transact():
            pass
        db.put("t", {"id": "b"})
        with served(db, address):
            assert client.get("t", {"id": "b"}) == {"id": "b"}
            client.put("t", {"id": "c"})
            assert [next(following).keys["id"] for _ in range(2)] == ["b", "c"]
            following.close()
        client.close()
        with pytest.raises(StoreClosedError):
            client.list_tables()


def test_a_write_whose_answer_is_lost_says_that_it_may_be_done(tmp_path: Path) -> None:
    """A server that takes a request and hangs up; a read is asked again instead."""
    address = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        asked = list[bytes]()

        def hang_up(times: int) -> None:
            for _ in range(times):
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    asked.append(lines.readline())

        with Client(address) as client:
            thread = threading.Thread(target=hang_up, args=(1,))
            thread.start()
            with pytest.raises(OutcomeUnknownError, match="may be kept or not"):
                client.put("t", {"id": "a"})
            thread.join()
            thread = threading.Thread(target=hang_up, args=(2,))
            thread.start()
            with pytest.raises(ServerUnavailableError, match="broke off"):
                client.get("t", {"id": "a"})
            thread.join()
        assert [json.loads(line)["op"] for line in asked] == ["put_item", "get_item", "get_item"]
