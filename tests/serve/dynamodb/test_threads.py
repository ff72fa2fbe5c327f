"""How many requests read the store at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.dynamodb.support import served
from tests.store.support import SetClock, commits, waiting
from tests.waiting import wait_until


class HeldClock(SetClock):
    """A clock at which whoever reads for a request waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.waiting = set[str]()
        self.news = threading.Condition()

    def wall_ms(self) -> int:
        name = threading.current_thread().name
        if name.startswith("dynamodb-reads"):
            with self.news:
                self.waiting.add(name)
                self.news.notify_all()
            self.let_go.wait()
        return super().wall_ms()


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_requests_read_at_once_as_the_setting_says(tmp_path: Path, threads: int) -> None:
    """`reader_threads`; and a write waits for none of them."""
    clock = HeldClock()
    with (
        served(tmp_path, clock=clock, reader_threads=threads) as server,
        ThreadPoolExecutor(threads + 1) as clients,
    ):
        table = server.table()
        name = {"TableName": table.name}
        target, key = "DynamoDB_20120810.GetItem", {"Key": {"id": {"S": "a"}}}
        reads = [clients.submit(server.post, target, {**name, **key}) for _ in range(threads + 1)]
        try:
            with clock.news:
                clock.news.wait_for(lambda: len(clock.waiting) == threads)
            item = {"Item": {"id": {"S": "a"}}}
            for _ in range(20):  # whatever read was to begin beside them has
                assert server.post("DynamoDB_20120810.PutItem", {**name, **item})[0] == 200
            assert len(clock.waiting) == threads
        finally:
            clock.let_go.set()
        assert [read.result()[0] for read in reads] == [200] * (threads + 1)


def test_writes_that_come_together_wait_for_the_disk_once(tmp_path: Path) -> None:
    with served(tmp_path) as server, ThreadPoolExecutor(10) as clients:
        name, before = {"TableName": server.table().name}, commits(server.db)
        items = [{"Item": {"id": {"S": f"{n}"}}} for n in range(10)]
        target = "DynamoDB_20120810.PutItem"
        with server.db.transact():
            done = [clients.submit(server.post, target, {**name, **item}) for item in items]
            wait_until(lambda: waiting(server.db) == 10, "they wait")
        assert [one.result()[0] for one in done] == [200] * 10
        assert commits(server.db) == before + 1
