"""A row that MySQL or MariaDB does not take at once stops the pipeline, and makes no loop of it."""

from collections.abc import Callable

import pytest

from penstock.errors import DestinationError
from tests.spark.replica.support import Driver, MysqlReplica
from tests.spark.tables import Entries, change, put
from tests_support.servers import MariaDbServer

_PACKET = 256 << 10


def test_a_row_that_is_no_packet_stops_the_pipeline_until_the_server_takes_it(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """A server may hang up on it, as one that is away does, which would be tried again."""
    server = start_mariadb()
    replica = MysqlReplica(server.host, server.port, "shop")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute(f"SET GLOBAL max_allowed_packet = {_PACKET}")
    entries = Entries()
    driver = Driver(entries, replica.config())

    def stopped(after: int, packet: int) -> None:
        before = replica.rows("orders")
        with pytest.raises(DestinationError, match=f"max_allowed_packet is {packet}"):
            driver.apply(after)
        assert replica.rows("orders") == before
        replica.ask(f"SET GLOBAL max_allowed_packet = {4 * packet}")

    try:
        driver.start()
        # Small rows beside one that nearly is a packet are not sent with it.
        large = "x" * (_PACKET - 200)
        rows = [put(key, n=key, text="é" * 1000) for key in range(200)]
        entries.commit(*rows[:100], put(5000, n=1, text=large), *rows[100:])
        entries.commit(*(change(key, "delete") for key in range(200)))
        assert driver.apply(0, 201).rows == 201
        driver.apply(201)
        assert replica.rows("orders") == {5000: {"_id": 5000, "n": 1, "text": large}}
        entries.commit(put(1, n=1), put(2, n=2, text="é" * (_PACKET // 2)))
        stopped(401, _PACKET)
        assert driver.apply(401).rows == 2
        # A change that is rejected is written down whole.
        entries.commit(put(3, n="no number", text="x" * (4 * _PACKET)))
        stopped(403, 4 * _PACKET)
        assert driver.apply(403).rejected == 1
        assert set(replica.rows("orders")) == {1, 2, 5000}
    finally:
        driver.close()
