"""Clients whose answers come late, or are not waited for: nobody else's answer is taken for one."""

import asyncio
import os
import resource
import socket
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from penstock.store import AsyncClient, Client, ServerUnavailableError
from penstock.store.remote.calls import SHARES
from penstock.store.remote.config import ServerConfig
from penstock.store.remote.links import Link, Lost
from penstock.store.remote.server import serving
from tests.store.support import opened, with_table
from tests.store.test_server import Raw


async def given_up(client: AsyncClient, *, then_commit: bool) -> None:
    """A transaction that asks for the item `b` and does not wait for the answer."""
    async with client.transact() as transaction:
        await transaction.put("t", {"id": "a", "n": 2})
        asked = asyncio.ensure_future(transaction.get("t", {"id": "b"}))
        await asyncio.sleep(0)  # it is on its way
        asked.cancel()
        if then_commit:
            await asyncio.wait([asked])
        else:
            await asked


@pytest.mark.parametrize("then_commit", [False, True])
async def test_an_answer_that_was_not_waited_for_is_nobody_elses(
    tmp_path: Path, then_commit: bool
) -> None:
    """Not the commit's either: the transaction is undone, and whoever asks next asks anew."""
    with opened(tmp_path / "store") as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 1})
        db.put("t", {"id": "b"})
        async with serving(db, tmp_path / "s"), AsyncClient(tmp_path / "s") as client:
            with pytest.raises(ServerUnavailableError if then_commit else asyncio.CancelledError):
                await given_up(client, then_commit=then_commit)
            assert await client.get("t", {"id": "a"}) == {"id": "a", "n": 1}
            assert await client.get("t", {"id": "c"}) is None


async def test_what_is_awaited_at_once_in_a_transaction_is_done_one_by_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        with_table(db)
        async with serving(db, tmp_path / "s"), AsyncClient(tmp_path / "s") as client:
            async with client.transact() as transaction:
                await asyncio.gather(
                    *(transaction.put("t", {"id": str(number)}) for number in range(5))
                )
            assert await client.count("t") == 5


def test_a_connection_whose_answer_is_late_is_not_used_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        link = Link(tmp_path / "s", 60)
        peer, _ = listener.accept()
        with peer:
            link.send(b"first\n")
            with pytest.raises(Lost):
                link.receive(0.001)
            assert not link.usable()
            with pytest.raises(Lost) as refused:
                link.send(b"second\n")
            assert not refused.value.sent
            link.close()
            assert peer.recv(100) == b"first\n"


@contextmanager
def many_files_open() -> Generator[None]:
    """All descriptors up to 1024 are taken: what is opened inside the block has a higher one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as undone:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
        undone.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        taken = os.open(os.devnull, os.O_RDONLY)
        undone.callback(os.close, taken)
        while taken < 1024:
            taken = os.dup(taken)
            undone.callback(os.close, taken)
        yield


def test_a_connection_is_used_again_in_a_process_with_many_open_files(tmp_path: Path) -> None:
    with many_files_open(), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with closing(Link(tmp_path / "s", 60)) as link, listener.accept()[0] as peer:
            assert peer.fileno() > 1024
            assert link.usable()
            peer.sendall(b"unasked\n")
            assert not link.usable()
            assert link.receive(60) == b"unasked\n"
            assert link.usable()
            peer.close()
            assert not link.usable()


async def test_who_waits_for_the_latest_gets_what_is_written_while_it_waits(tmp_path: Path) -> None:
    """F14: the place that it waits behind is that of its request, wherever the latest is by now."""
    with opened(tmp_path / "store") as db:
        with_table(db)
        async with serving(db, tmp_path / "s"):
            with await asyncio.to_thread(Raw, tmp_path / "s") as raw:
                asking = asyncio.ensure_future(
                    asyncio.to_thread(
                        raw.ask, "get_stream_records", table="t", start="latest", wait_ms=3000
                    )
                )
                written = 0
                while not asking.done():
                    await asyncio.to_thread(db.put, "t", {"id": str(written)})
                    written += 1
                assert (await asking)["records"]


async def test_what_a_client_asks_at_once_waits_for_its_turn(tmp_path: Path) -> None:
    """However much it is: a server has so many connections, for all of its clients."""
    few = ServerConfig(connections_max=sum(SHARES.values()))
    with opened(tmp_path / "store") as db:
        with_table(db)
        async with serving(db, tmp_path / "s", few), AsyncClient(tmp_path / "s") as client:
            await asyncio.gather(*(client.put("t", {"id": f"a{n}"}) for n in range(100)))
            with Client(tmp_path / "s") as blocking, ThreadPoolExecutor(60) as threads:
                puts = [
                    asyncio.wrap_future(threads.submit(blocking.put, "t", {"id": f"b{n}"}))
                    for n in range(100)
                ]
                await asyncio.gather(*puts)
            assert await client.count("t") == 200


async def test_whoever_has_a_transaction_reads_though_writes_wait_for_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        with_table(db)
        async with serving(db, tmp_path / "s"), AsyncClient(tmp_path / "s") as client:
            async with client.transact() as transaction:
                await transaction.put("t", {"id": "a"})
                writes = [asyncio.create_task(client.put("t", {"id": str(n)})) for n in range(50)]
                later = [asyncio.create_task(write_one(client, n)) for n in range(20)]
                await asyncio.sleep(0)  # they are on their way
                assert await client.count("t") == 0
                assert not any(one.done() for one in (*writes, *later))
            await asyncio.gather(*writes, *later)
            assert await client.count("t") == 71


async def write_one(client: AsyncClient, number: int) -> None:
    async with client.transact() as transaction:
        await transaction.put("t", {"id": f"t{number}"})
