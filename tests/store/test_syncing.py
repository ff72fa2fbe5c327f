"""Writes that do not wait for the disk: what a power cut may take, and how it is told."""

import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

from penstock import kv, store
from penstock.errors import ConfigError, LogError, LogFullError, LogLockedError, SourceError
from penstock.event import Commit
from penstock.kv import Env
from penstock.sources.store import StoreSource, StoreSourceConfig
from penstock.store import (
    AheadOfStreamError,
    Client,
    Item,
    KeyType,
    Retention,
    Store,
    StoreError,
    StorePointError,
    StoreSyncError,
    StoreUnsettledError,
    StreamChangedError,
    StreamError,
    TransactionError,
    syncing,
)
from penstock.store.syncing import NAME, TRANSACTIONS_MAX, SyncMode, read_point, write_point
from tests.seeds import seed_of
from tests.store.support import BOTH, SetClock, all_records
from tests.store.test_crash import folded, items_of
from tests.store.test_server_crash import COMMAND, serve
from tests.waiting import PATIENCE_SECONDS

PAGE = 4096


@contextmanager
def unsynced(path: Path) -> Generator[Store]:
    """A store whose writes do not wait, synced only when a test says so, and that nobody sweeps."""
    with store.open(
        path, sync="none", sync_seconds=None, sweep_seconds=None, clock=SetClock()
    ) as db:
        if "t" not in db.list_tables():
            db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH).retention(
                Retention(records_max=60)
            ).execute()
        yield db


def power_cut(path: Path, target: Path) -> Path:
    """What a machine that went down now would find: of this kernel's run nothing is left."""
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("*.sock"))
    point = read_point(target)
    assert point is not None
    write_point(target, msgspec.structs.replace(point, boot="the run before"))
    return target


def torn(before: Path, after: Path, rng: random.Random) -> None:
    """Every page of `after` that was written since `before` may be on the disk, or not."""
    old, new = before.read_bytes(), after.read_bytes()
    pages = list[bytes]()
    for at in range(0, len(new), PAGE):
        kept = rng.random() < 0.5
        pages.append(new[at : at + PAGE] if kept else old[at : at + PAGE].ljust(PAGE, b"\x00"))
    after.write_bytes(b"".join(pages))


def write_some(db: Store, rng: random.Random, transactions: int) -> None:
    """Puts and deletes, some large, that use pages again; old records go."""
    for _ in range(transactions):
        with db.transact() as transaction:
            for _ in range(rng.randint(1, 3)):
                key = {"id": f"{rng.randrange(30)}"}
                if rng.random() < 0.3:
                    transaction.delete("t", key)
                else:
                    item: Item = {**key, "n": rng.random().hex(), "d": "d" * rng.randrange(9000)}
                    transaction.put("t", item)


def contents(db: Store) -> tuple[dict[str, Item], list[Any]]:
    """All items and all records."""
    return items_of(db, "t"), all_records(db)


@pytest.mark.slow
def test_after_a_power_cut_the_store_is_what_it_was_at_its_last_sync(tmp_path: Path) -> None:
    """F17: whichever pages the disk has, whole, and again after the next power cut."""
    rng = random.Random(seed_of("store-power-cut"))
    path = tmp_path / "0"
    for life in range(12):
        with unsynced(path) as db:
            write_some(db, rng, rng.randrange(40))
            db.sync()
            known = contents(db)
            synced = tmp_path / "synced.mdb"
            shutil.copyfile(path / "data.mdb", synced)
            write_some(db, rng, rng.randrange(1, 40))
            path = power_cut(path, tmp_path / f"{life + 1}")
            torn(synced, path / "data.mdb", rng)
        with unsynced(path) as db:
            assert contents(db) == known


@pytest.mark.slow
def test_the_death_of_the_process_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.store.test_syncing import unsynced\n"
        "with unsynced(Path(sys.argv[1])) as db:\n"
        "    for n in range(50):\n"
        "        db.put('t', {'id': 'a', 'n': n})\n"
        "    db.consume('t', 'c').run(lambda records: None, idle_seconds=0)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert (tmp_path / NAME).exists()
    with store.open(tmp_path, read_only=True) as db:
        assert db.get("t", {"id": "a"}) == {"id": "a", "n": 49}
    with store.open(tmp_path, sweep_seconds=None, clock=SetClock()) as db:
        assert db.get("t", {"id": "a"}) == {"id": "a", "n": 49}
        assert not (tmp_path / NAME).exists()
        heard = list[object]()
        db.consume("t", "c").run(heard.extend, idle_seconds=0)
        assert heard == []


def test_whoever_saw_what_was_lost_is_told(tmp_path: Path) -> None:
    """F4, F10: by position, as a consumer, and by an item's version."""
    told = list[StreamError]()
    with unsynced(tmp_path / "a") as db:
        db.put("t", {"id": "a", "n": 0})
        db.consume("t", "c").run(lambda _: None, idle_seconds=0)
        db.sync()
        kept = db.get_stream_records("t").execute().position
        db.put("t", {"id": "a", "n": 1})
        db.put("t", {"id": "lost"})
        lost = [record.position for record in db.get_stream_records("t").execute().records[1:]]
        version = db.get_versioned("t", {"id": "a"})
        assert version is not None
        path = power_cut(tmp_path / "a", tmp_path / "b")
    with unsynced(path) as db:
        for position in lost:
            with pytest.raises(AheadOfStreamError):
                db.get_stream_records("t").after(position).execute()
        for number in range(2):
            db.put("t", {"id": f"new{number}"})
            with pytest.raises(StreamChangedError):
                db.get_stream_records("t").after(lost[number]).execute()
        assert len(db.get_stream_records("t").after(kept).execute().records) == 2
        db.put("t", {"id": "a", "n": 2})
        again = db.get_versioned("t", {"id": "a"})
        assert again is not None
        assert again[1] > version[1]
        with pytest.raises(StreamChangedError):
            db.consume("t", "c").run(lambda _: None, idle_seconds=0)
        db.consume("t", "c", resync=told.append).run(lambda _: None, idle_seconds=0)
        assert [type(error) for error in told] == [StreamChangedError]


async def test_a_log_that_captured_what_was_lost_does_not_go_on_silently(tmp_path: Path) -> None:
    """Invariant 4: the store is behind its own capture, and then says something else."""
    with unsynced(tmp_path / "a") as db:
        db.put("t", {"id": "a"})
        db.sync()
        db.put("t", {"id": "lost"})
        position = await first_position(tmp_path / "a", None)
        path = power_cut(tmp_path / "a", tmp_path / "b")
    with unsynced(path) as db:
        with pytest.raises(SourceError, match="Capture has stopped"):
            await first_position(path, position)
        db.put("t", {"id": "new"})
        with pytest.raises(SourceError, match="Capture has stopped"):
            await first_position(path, position)


async def first_position(path: Path, position: str | None) -> str:
    """Where a source stands at its start."""
    source = StoreSource("s", StoreSourceConfig.model_validate({"path": path}))
    changes = source.changes(position=position)
    try:
        async for item in changes:
            assert isinstance(item, Commit)
            return item.position
        raise AssertionError("a source tells where it begins")
    finally:
        await changes.aclose()  # type: ignore[attr-defined]
        await source.close()


@pytest.mark.parametrize("where", ["penstock.kv.open_env", "penstock.store.backups.begin_copy"])
@pytest.mark.parametrize("sync", ["full", "none"])
def test_a_loss_is_told_though_whoever_puts_the_store_back_dies_at_once(
    tmp_path: Path, sync: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unsynced(tmp_path / "a") as db:
        db.register_consumer("t", "c")
        db.sync()
        path = power_cut(tmp_path / "a", tmp_path / "b")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(where, die)
        with pytest.raises(KeyboardInterrupt):
            store.open(path, sync=sync)
    with store.open(path, sync=sync) as db:
        assert db.register_consumer("t", "c").restored
    assert not (path / NAME).exists()
    with store.open(path, sync=sync) as db:
        assert db.list_tables() == ["t"]


def test_a_reader_waits_for_the_writer_after_a_power_cut(tmp_path: Path) -> None:
    with unsynced(tmp_path / "a") as db:
        db.sync()
        path = power_cut(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreUnsettledError, match="Nothing was read"):
        store.open(path, read_only=True)
    with unsynced(path), store.open(path, read_only=True) as reader:
        assert reader.list_tables() == ["t"]


def test_a_reader_beside_a_writer_of_either_mode_goes_on(tmp_path: Path) -> None:
    """They share LMDB's handle in one process, which starts anew where the mode changes."""
    store.open(tmp_path).close()
    with store.open(tmp_path, read_only=True) as reader:
        for number, mode in enumerate(("none", "full", "none")):
            with store.open(tmp_path, sync=mode) as db:  # type: ignore[arg-type]
                db.create_table(f"t{number}").partition_key("id", KeyType.STRING).execute()
                assert reader.count(f"t{number}") == 0
                assert kv_of(db).synchronous == (mode == "full")
            assert not (tmp_path / NAME).exists()
        assert reader.list_tables() == ["t0", "t1", "t2"]


def test_a_change_of_the_mode_does_not_wait_forever_for_a_reader_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "_SET_SYNC_SECONDS_MAX", 0.01)
    store.open(tmp_path).close()
    with store.open(tmp_path, read_only=True) as reader, reader.view():
        with pytest.raises(LogLockedError, match="did not end"):
            store.open(tmp_path, sync="none")
        store.open(tmp_path).close()
    with store.open(tmp_path, sync="none") as db:
        assert not kv_of(db).synchronous


def kv_of(db: Store) -> Env:
    """The store's environment, which the process shares."""
    with kv.open_env(db.path, create=False) as env:
        return env


def test_a_sync_comes_by_time_and_by_number_without_being_asked_for(tmp_path: Path) -> None:
    with unsynced(tmp_path / "a") as db:
        db.sync()
        first = read_point(db.path)
        for number in range(TRANSACTIONS_MAX - 5):
            db.put("t", {"id": f"{number % 7}", "n": number})
        assert read_point(db.path) == first
        for number in range(10):
            db.put("t", {"id": f"{number}"})
        assert read_point(db.path) != first
    with store.open(tmp_path / "new", sync="none", sync_seconds=None) as db:
        created = read_point(db.path)
        db.sync()
        assert read_point(db.path) != created
    with store.open(tmp_path / "b", sync="none", sync_seconds=0.01) as db:
        before = read_point(db.path)
        db.create_table("t").partition_key("id", KeyType.STRING).execute()
        while read_point(db.path) == before:
            db.bell.wait_now(lambda: False, 0.01)


@pytest.mark.slow
def test_the_file_does_not_grow_with_what_is_written_over_and_over(tmp_path: Path) -> None:
    """Pages are not used again between two syncs, and are used again after them."""
    with unsynced(tmp_path) as db:

        def rounds() -> int:
            for _ in range(5):
                for number in range(200):
                    db.put("t", {"id": "a", "n": f"{number}"})
                db.sync()
            return (tmp_path / "data.mdb").stat().st_size

        rounds()
        assert rounds() <= rounds() < 20 << 20


def test_the_file_does_not_grow_with_few_transactions_that_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "BYTES_MAX", 4 << 20)
    with unsynced(tmp_path) as db:
        db.disable_stream("t")
        for number in range(60):
            db.write_batch(
                puts=[("t", {"id": f"{n}", "n": number, "d": "d" * 300_000}) for n in range(4)]
            )
        assert (tmp_path / "data.mdb").stat().st_size < 20 << 20


def test_a_sync_is_refused_where_there_is_nothing_to_sync_for(tmp_path: Path) -> None:
    with unsynced(tmp_path) as db:
        with db.transact(), pytest.raises(TransactionError):
            db.sync()
        with store.open(tmp_path, read_only=True) as reader, pytest.raises(TransactionError):
            reader.sync()
    with store.open(tmp_path) as db:
        db.sync()
    with pytest.raises(ConfigError, match="full or none"):
        store.open(tmp_path, sync="fast")  # type: ignore[arg-type]


def test_once_a_sync_failed_nothing_is_written_and_the_store_goes_back_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel tells of a write that failed once; what it then has in memory is no proof."""
    db = store.open(tmp_path, sync="none", sync_seconds=None, sweep_seconds=None)
    db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH).execute()
    db.sync()
    db.put("t", {"id": "a"})
    with monkeypatch.context() as disk:

        def fail(_: Env) -> None:
            raise LogFullError("the disk failed")

        disk.setattr(Env, "flush", fail)
        with pytest.raises(StoreSyncError, match="goes on from that sync"):
            db.sync()
    with pytest.raises(StoreSyncError):
        db.put("t", {"id": "b"})
    with pytest.raises(StoreSyncError):
        db.sync()
    with pytest.raises(StoreSyncError):
        db.close()
    with store.open(tmp_path, sweep_seconds=None) as db:
        assert items_of(db, "t") == folded(db, "t") == {}
        db.put("t", {"id": "b"})


def test_a_failed_sync_is_told_to_the_next_writer_and_not_to_one_whose_write_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = store.open(tmp_path, sync="none", sync_seconds=None, sweep_seconds=None)
    db.create_table("t").partition_key("id", KeyType.STRING).execute()

    def fail(_: Env) -> None:
        raise LogFullError("the disk failed")

    with monkeypatch.context() as disk:
        disk.setattr(Env, "flush", fail)
        kept = 0
        with suppress(StoreSyncError):
            while True:
                db.put("t", {"id": f"{kept}"})
                kept += 1
    assert db.count("t") == kept
    with pytest.raises(StoreSyncError):
        db.close()


def test_after_a_new_start_of_lmdb_the_sync_point_is_kept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the start lets go of the pinned snapshot, whose pages must not be written over."""
    rng = random.Random(seed_of("store-new-start"))
    with unsynced(tmp_path / "a") as db:
        write_some(db, rng, 20)
        db.sync()
        with kv.open_env(db.path, create=False) as env:
            real = vars(env)["_lmdb"]
            with monkeypatch.context() as disk:
                disk.setattr(env, "_lmdb", Panicking(real))
                with pytest.raises(LogFullError):
                    db.put("t", {"id": "refused"})
                fresh = vars(env)["_lmdb"]
            monkeypatch.setattr(env, "_lmdb", fresh)
            shutil.copyfile(db.path / "data.mdb", tmp_path / "synced.mdb")
            known = contents(db)
            write_some(db, rng, 40)
            path = power_cut(db.path, tmp_path / "b")
            torn(tmp_path / "synced.mdb", path / "data.mdb", rng)
    with unsynced(path) as db:
        assert contents(db) == known


class Panicking:
    """LMDB that wants a new start at its next write: no disk fails so on demand."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def begin(self, *, write: bool = False) -> Any:
        if write:
            raise lmdb.PanicError("the meta page")
        return self._real.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_file_that_was_put_beside_the_sync_of_another_is_refused(tmp_path: Path) -> None:
    with unsynced(tmp_path / "a") as db:
        db.put("t", {"id": "a"})
        db.backup(tmp_path / "backup")
        for number in range(20):
            db.put("t", {"id": f"{number}"})
        db.sync()
        path = power_cut(tmp_path / "a", tmp_path / "b")
    shutil.copyfile(tmp_path / "backup" / "data.mdb", path / "data.mdb")
    with pytest.raises(StoreError, match="Restore whole folders"):
        store.open(path)
    (path / NAME).write_bytes(b"not what was written")
    with pytest.raises(StoreError, match="damaged"):
        store.open(path)
    (path / NAME).unlink()
    with store.open(path) as db:
        assert db.count("t") == 1


@pytest.mark.slow
def test_a_server_that_does_not_wait_for_the_disk_syncs_when_it_is_asked_and_at_its_end(
    tmp_path: Path,
) -> None:
    path, address = tmp_path / "store", tmp_path / "s"
    with serve(path, address, "--sync", "none") as server:
        with Client(address) as db:
            db.create_table("t").partition_key("id", KeyType.STRING).execute()
            before = read_point(path)
            assert before is not None
            db.put("t", {"id": "a"})
            db.sync()
            assert read_point(path) != before
        assert server.stop() == 0
    assert not (path / NAME).exists()
    refused = [*COMMAND, str(path), "--socket", str(address), "--sync", "fast"]
    done = subprocess.run(refused, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--sync" in done.stderr


def test_a_sync_that_could_not_be_kept_is_not_taken_for_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for want of descriptors or of room: the disk is sound, so nothing is given up either."""
    with unsynced(tmp_path / "a") as db:
        db.put("t", {"id": "a"})
        before = read_point(db.path)
        for name, fail in (("pin", LogError("no slot")), ("write_point", OSError("no room"))):
            with monkeypatch.context() as disk:
                disk.setattr(*_failing(name, fail))
                for _ in range(2):
                    with pytest.raises(StorePointError, match="goes on by itself"):
                        db.sync()
                with pytest.raises(StorePointError):
                    db.put("t", {"id": "refused"})
            assert read_point(db.path) == before
            assert db.get("t", {"id": "refused"}) is None
        db.sync()
        assert read_point(db.path) != before
        with monkeypatch.context() as disk:
            disk.setattr(*_failing("write_point", OSError("no room")))
            for number in range(TRANSACTIONS_MAX):
                db.put("t", {"id": "b", "n": number})  # the last is kept, and so raises nothing
            with pytest.raises(StorePointError):
                db.put("t", {"id": "refused"})
        db.put("t", {"id": "c"})
        db.sync()
        path = power_cut(db.path, tmp_path / "b")
    with unsynced(path) as db:
        assert items_of(db, "t").keys() == {"a", "b", "c"}


def _failing(name: str, error: Exception) -> tuple[Any, str, Any]:
    def fail(*_: object) -> None:
        raise error

    return (Env if hasattr(Env, name) else syncing), name, fail


def test_a_sync_that_was_interrupted_is_made_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unsynced(tmp_path / "a") as db:
        db.put("t", {"id": "a"})
        with monkeypatch.context() as user:
            user.setattr(*_failing("write_point", KeyboardInterrupt()))  # type: ignore[arg-type]
            with pytest.raises(KeyboardInterrupt):
                db.sync()
        db.sync()
        path = power_cut(db.path, tmp_path / "b")
    with unsynced(path) as db:
        assert items_of(db, "t") == {"a": {"id": "a"}}


@pytest.mark.parametrize("mode", ["none", "full"])
def test_a_sync_that_fails_while_the_store_is_opened_is_told_to_who_opens_it_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: SyncMode
) -> None:
    """What a writer that died left unsynced: a kernel tells only once that it could not write."""
    with unsynced(tmp_path / "a") as db:
        db.put("t", {"id": "a"})
        db.sync()
        db.put("t", {"id": "b"})
        shutil.copytree(db.path, tmp_path / "b", ignore=shutil.ignore_patterns("*.sock"))
    with monkeypatch.context() as disk:
        disk.setattr(*_failing("flush", LogFullError("the disk failed")))
        with pytest.raises(StoreSyncError):
            store.open(tmp_path / "b", sync=mode)
    with unsynced(tmp_path / "b") as db:
        assert items_of(db, "t") == {"a": {"id": "a"}}


def test_writers_do_not_wait_for_a_sync_that_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing, go_on = threading.Semaphore(0), threading.Event()
    real = Env.flush

    def slow(env: Env) -> None:
        flushing.release()
        assert go_on.wait(PATIENCE_SECONDS)
        real(env)

    with unsynced(tmp_path) as db, ThreadPoolExecutor(3) as threads:
        db.put("t", {"id": "a"})
        with monkeypatch.context() as disk:
            disk.setattr(Env, "flush", slow)
            try:
                first = threads.submit(db.sync)
                assert flushing.acquire(timeout=PATIENCE_SECONDS)
                turn = vars(db)["_syncing"]._turn
                monkeypatch.setattr(vars(db)["_syncing"], "_turn", waited := Waited(turn))
                second = threads.submit(db.sync)
                assert waited.asked.wait(PATIENCE_SECONDS)
                threads.submit(db.put, "t", {"id": "b"}).result(60)
                assert not first.done()
                assert not second.done()
            finally:
                go_on.set()
            second.result(60)


class Waited:
    """A lock that says when somebody asks for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.asked = threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


FORKED = """
import gc, os, sys
from pathlib import Path
import pytest
from penstock import store
from penstock.store import TransactionError
from penstock.store.syncing import NAME
from tests.store.test_syncing import kv_of, unsynced

path = Path(sys.argv[1])
with unsynced(path) as db:
    db.put("t", {"id": "a"})
    db.sync()
    pins = vars(kv_of(db))["_lmdb"].readers()
    child = os.fork()
    if not child:
        def read():
            store.open(path, read_only=True)
        def write():
            db.put("t", {"id": "b"})
        for use in (read, write, lambda: db.get("t", {"id": "a"}), db.sync):
            with pytest.raises(TransactionError, match="forked"):
                use()
        with pytest.raises(store.StoreLockedError):
            store.open(path)
        vars(db)["_syncing"]._pin = None
        gc.collect()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert (path / NAME).exists()
    assert pins.splitlines()[1].split()[0] == str(os.getpid())
    assert pins.splitlines()[1] in vars(kv_of(db))["_lmdb"].readers().splitlines()
    db.put("t", {"id": "c"})
assert not (path / NAME).exists()
"""


@pytest.mark.slow
def test_a_fork_of_the_writer_takes_nothing_from_it(tmp_path: Path) -> None:
    """Neither its point nor the snapshot that it pins, and says that it was opened elsewhere."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
