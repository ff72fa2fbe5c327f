"""The server is killed while clients write: what was acknowledged is there, and data and stream
agree."""

import random
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock import store
from penstock.store import (
    Client,
    Item,
    KeyType,
    OutcomeUnknownError,
    ServerUnavailableError,
    Store,
    StreamRecord,
)
from tests.children import Child
from tests.seeds import seed_of
from tests.store.support import BOTH
from tests.store.test_crash import folded, items_of

COMMAND = (sys.executable, "-m", "penstock.cli", "store", "serve")


@contextmanager
def serve(path: Path, address: Path, *options: str) -> Generator[Child]:
    """A server that is ready."""
    with Child(*COMMAND, path, "--socket", address, *options) as process:
        assert "serving" in process.line(), process.tail()
        yield process


class Writer(threading.Thread):
    """Writes to keys of its own until the server is gone; knows what must, and what may, be."""

    def __init__(self, address: Path, name: str, seed: int) -> None:
        super().__init__()
        self._address = address
        self._name = name
        self._rng = random.Random(seed)
        self.sure = dict[str, Item | None]()
        self.open: dict[str, Item | None] = {}
        """The keys of the write that was not answered, as it would leave them."""
        self.written = 0
        self.wrote = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(self._address) as db:
                while True:
                    self._step(db)
        except (OutcomeUnknownError, ServerUnavailableError):
            return
        except BaseException as failure:
            self.failure = failure
            raise

    def _step(self, db: Client) -> None:
        changes = dict[str, Item | None]()
        for _ in range(self._rng.randint(1, 3)):
            key = f"{self._name}{self._rng.randrange(5)}"
            item: Item = {"id": key, "n": self.written, "data": b"\xff" * self._rng.randrange(999)}
            changes[key] = None if self._rng.random() < 0.2 else item
        self.open = changes
        if len(changes) == 1:
            ((key, change),) = changes.items()
            db.delete("t", {"id": key}) if change is None else db.put("t", change)
        else:
            with db.transact() as transaction:
                for key, change in changes.items():
                    if change is None:
                        transaction.delete("t", {"id": key})
                    else:
                        transaction.put("t", change)
        self.sure |= changes
        self.open = {}
        self.written += 1
        self.wrote.set()

    def agrees(self, items: dict[str, Item]) -> bool:
        """Whether what is there is what was acknowledged, with or without the last write."""
        found = {key: items.get(key) for key in {*self.sure, *self.open}}
        before = {key: self.sure.get(key) for key in found}
        return found in (before, {**before, **self.open})


@pytest.mark.slow
def test_killed_while_clients_write_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """F17, over the socket: transactions whole or not at all, and the stream is the data."""
    seed = seed_of("store-server-crash")
    rng = random.Random(seed)
    path, address = tmp_path / "store", tmp_path / "s"
    with store.open(path, sweep_seconds=None) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH).execute()
    sure = dict[str, Item | None]()
    for life in range(4):
        with serve(path, address):
            writers = [Writer(address, f"{life}{name}", rng.getrandbits(32)) for name in "ab"]
            for writer in writers:
                writer.start()
            wanted = rng.randrange(5, 60)
            while writers[0].written < wanted and writers[0].is_alive():
                writers[0].wrote.wait()
                writers[0].wrote.clear()
        for writer in writers:
            writer.join()
            assert writer.failure is None
        with store.open(path, sweep_seconds=None) as db:
            items = items_of(db, "t")
            assert folded(db, "t") == items
            for writer in writers:
                assert writer.written
                assert writer.agrees(items)
            assert all(items.get(key) == item for key, item in sure.items())
            sure = dict(items)


@pytest.mark.slow
def test_a_follower_and_a_consumer_go_on_over_the_death_of_the_server(tmp_path: Path) -> None:
    """Every record once for who follows, at least once for who consumes, in order."""
    path, address = tmp_path / "store", tmp_path / "s"
    followed, consumed = list[int](), list[int]()
    failures = list[BaseException]()

    def follow() -> None:
        try:
            with Client(address) as db:
                for record in db.follow("t"):
                    followed.append(record.sequence_number)
                    if record.keys == {"id": "last"}:
                        return
        except BaseException as failure:
            failures.append(failure)
            raise

    def consume() -> None:
        def handle(records: list[StreamRecord]) -> None:
            consumed.extend(record.sequence_number for record in records)

        while True:
            try:
                with Client(address) as db:
                    db.consume("t", "c", limit=7).run(handle, idle_seconds=0.5)
                    if db.get_stream_info("t").latest_sequence == consumed[-1]:
                        return
            except (ServerUnavailableError, OutcomeUnknownError):
                continue
            except BaseException as failure:
                failures.append(failure)
                raise

    with ExitStack() as servers:
        server = servers.enter_context(serve(path, address))
        with Client(address) as db:
            db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH).execute()
            db.put("t", {"id": "first"})
            threads = [threading.Thread(target=follow), threading.Thread(target=consume)]
            for thread in threads:
                thread.start()
            for life in range(3):
                for number in range(40):
                    db.put("t", {"id": f"{life}-{number}"})
                server.kill()
                server = servers.enter_context(serve(path, address))
            db.put("t", {"id": "last"})
            for thread in threads:
                thread.join()
            assert not failures
            page = db.get_stream_records("t").limit(1000).execute()
    told = [record.sequence_number for record in page.records]
    assert followed == told
    assert sorted(set(consumed)) == told
    assert len(told) == 122


@pytest.mark.slow
def test_a_server_ends_by_itself_on_sigterm_and_a_second_one_is_refused(tmp_path: Path) -> None:
    path, address = tmp_path / "store", tmp_path / "s"
    with serve(path, address) as server:
        second = subprocess.run(
            [*COMMAND, str(path), "--socket", str(tmp_path / "other"), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert '"store.locked"' in second.stderr
        assert f"process {server.pid} writes the store" in second.stderr
        assert not (tmp_path / "other").exists()
        assert server.stop() == 0
    assert not address.exists()
    assert list_tables(path) == []


def list_tables(path: Path) -> list[str]:
    db: Store
    with store.open(path, read_only=True) as db:
        return db.list_tables()
