"""A server that does not log every change of the captured tables is refused, and named."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest
from msgspec import structs

from penstock.checks import Check
from penstock.errors import ConfigError
from penstock.sources.mysql.connection import ask, facts
from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.logged import Filters, unlogged
from penstock.sources.mysql.scope import Scope
from tests.conftest import started
from tests.mysql.conftest import on
from tests.mysql.support import Story, behind, caught_up, config_of, end_of, run, source_of
from tests.telling import follow
from tests.waiting import wait_until
from tests_support.servers import MariaDbServer, SqlServer, free_ports

Start = Callable[..., SqlServer]


async def checked(server: SqlServer, **options: Any) -> dict[str, Check]:
    """By name: what the doctor found."""
    return {check.name: check for check in await doctor("db", config_of(server, **options))}


async def refused(server: SqlServer, story: Story, *, match: str, **options: Any) -> None:
    told = len(story.items)
    with pytest.raises(ConfigError, match=match):
        await follow(source_of(server, **options), story, lambda _: False)
    assert len(story.items) == told


def replicate(kind: str, port: int) -> str:
    """The statement by which a server is to be the replica of another."""
    if kind == "mariadb":
        return f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER='r'"
    return (
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, "
        f"SOURCE_USER = 'r'"
    )


@on("mariadb", "mysql")
async def test_a_replica_that_does_not_log_what_it_replicates_is_refused(
    kind: str, start: Start
) -> None:
    """Whenever it has become one: at the start of every session, whatever was captured before."""
    server = start(options=("--log-slave-updates=0",))
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        story = await caught_up(server, source_of(server, start="beginning"))
        assert (await checked(server))["logged"].ok
        run(db, replicate(kind, server.port))
        await refused(server, story, match="is OFF and the server is a replica.*penstock snapshot")
        found = (await checked(server))["logged"]
        assert not found.ok
        assert "in the server's file" in found.fix
        run(db, "RESET REPLICA ALL", "INSERT INTO d.a VALUES (1)")
        await caught_up(server, source_of(server), story)
    assert len(story.changes) == 1


@on("mariadb", "mysql")
async def test_a_replica_whose_status_has_bytes_that_are_no_text_is_known_as_one(
    kind: str, start: Start
) -> None:
    """MariaDB quotes the statement that it failed at as it was written, in latin1 here; MySQL keeps
    what a statement that it refused has set."""
    server = start(options=("--log-slave-updates=0",))
    status = "SHOW REPLICA STATUS"
    with server.connect() as db:
        run(db, "SET sql_log_bin = 0", "CREATE DATABASE d", "CREATE TABLE d.a (c INT)")
        if kind == "mysql":
            run(db, "SET NAMES binary")
            of = b"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1"
            with pytest.raises(pymysql.MySQLError, match="User_name"):
                run(db, of + b", SOURCE_USER = 'caf\xe9'")
        else:
            other = start(server_id=2)
            with other.connect() as there:
                run(there, "SET sql_log_bin = 0", "CREATE DATABASE d", "CREATE TABLE d.a (id INT)")
                run(there, "SET sql_log_bin = 1, NAMES latin1")
                run(there, b"ALTER TABLE d.a ADD c INT COMMENT 'caf\xe9'")
            run(db, replicate(kind, other.port).replace("'r'", "'root'"), "START SLAVE")

        def told() -> bool:
            return any(r"caf\xe9" in str(one) for row in ask(db, status) for one in row)

        wait_until(told)
    assert not (await checked(server))["logged"].ok
    await refused(server, Story(), match="the server is a replica", start="beginning")


async def test_whether_a_server_replicates_is_seen_by_who_may_look_or_while_it_does(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """With the grants that capture needs, MariaDB shows no replica at rest."""
    server = start_mariadb(options=["--log-slave-updates=0"])
    options: dict[str, Any] = {"user": "cdc", "password": "secret", "start": "beginning"}
    with server.connect() as db:
        run(db, "CREATE USER cdc IDENTIFIED BY 'secret'")
        run(db, "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO cdc")
        run(db, replicate("mariadb", server.port))
        found = (await checked(server, **options))["logged"]
        assert found.ok
        assert "GRANT REPLICA MONITOR" in found.detail
        story = await caught_up(server, source_of(server, **options))
        run(db, "SET GLOBAL gtid_slave_pos = '0-7-9'")
        found = (await checked(server, **options))["logged"]
        assert not found.ok
        assert "it did replicate once" in found.detail
        run(db, "START SLAVE")
        await refused(server, story, match="the server is a replica", **options)
        run(db, "STOP SLAVE", "GRANT REPLICA MONITOR ON *.* TO cdc")
        await refused(server, story, match="the server is a replica", **options)


@on("mariadb", "mysql")
def test_a_node_made_of_mysql_that_does_not_log_what_others_write_is_refused(
    kind: str, server: SqlServer
) -> None:
    """Every server answers what is asked. MariaDB logs it in any case, as the next test shows."""
    with server.connect() as db:
        alone = facts(db)
        assert not alone.in_cluster
        node = structs.replace(alone, in_cluster=True)
        for found in (alone, node, structs.replace(alone, logs_replicated=False)):
            assert unlogged(db, found, Scope()) == []
        missing = unlogged(db, structs.replace(node, logs_replicated=False), Scope())
    assert len(missing) == (kind == "mysql")
    for why, remedy in missing:
        assert "log_replica_updates is OFF" in why
        assert "other nodes" in why
        assert "log_replica_updates = ON in the server's file" in remedy
        assert "RESET" not in remedy


GALERA = Path("/usr/lib/galera/libgalera_smm.so")
"""Comes with Debian's mariadb-server."""


def node_options(address: str, *, peer: str = "") -> tuple[str, ...]:
    """Of a node of a Galera cluster that is reached at `address`; without a `peer`, its first."""
    copied_at, sent_at = (f"127.0.0.1:{port}" for port in free_ports(2))
    provider = {
        "gmcast.listen_addr": f"tcp://{address}",
        "ist.recv_addr": sent_at,
        "ist.recv_bind": sent_at,
    }
    return (
        *("--log-slave-updates=0", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON"),
        *(f"--wsrep-provider={GALERA}", f"--wsrep-cluster-address=gcomm://{peer}"),
        f"--wsrep-provider-options={';'.join(f'{key}={one}' for key, one in provider.items())}",
        *("--wsrep-node-address=127.0.0.1", f"--wsrep-sst-receive-address={copied_at}"),
    )


@pytest.fixture
def nodes() -> Iterator[tuple[MariaDbServer, MariaDbServer]]:
    """Two nodes of a Galera cluster that do not log what they replicate otherwise."""
    if not GALERA.exists() or shutil.which("rsync") is None:
        pytest.skip("galera-4 and rsync, of Debian's mariadb-server, are not installed")
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    with ExitStack() as stack:
        one = started(stack, MariaDbServer(server_id=1, options=node_options(first)))
        options = node_options(second, peer=first)
        other = started(stack, MariaDbServer(server_id=2, options=options))
        with other.connect() as db:
            ready = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'"
            wait_until(lambda: run(db, ready) == [("wsrep_ready", "ON")])
        yield one, other


@pytest.mark.server
@pytest.mark.soak
async def test_what_is_written_at_other_nodes_of_a_cluster_of_mariadbs_is_captured(
    nodes: tuple[MariaDbServer, MariaDbServer],
) -> None:
    """Though log_slave_updates is OFF: such a node logs what it applies in any case."""
    ours, other = nodes
    with ours.connect() as db, other.connect() as there:
        found = facts(db)
        assert (found.in_cluster, found.logs_replicated) == (True, False)
        run(there, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(there, "INSERT INTO d.a VALUES (1)", "INSERT INTO d.a VALUES (2)")
        # With this, what was written there before is here.
        run(db, "SET wsrep_sync_wait = 7", "INSERT INTO d.a VALUES (3)")
        until = behind(end_of(db))
    story = await follow(source_of(ours, start="beginning"), Story(), until)
    assert [event.document_id for event in story.changes] == ["1", "2", "3"]
    assert (await checked(ours))["logged"].ok


@on("mariadb", "mysql")
async def test_databases_that_a_server_does_not_log_are_not_captured(start: Start) -> None:
    server = start(options=("--binlog-ignore-db=shop",))
    with server.connect() as db:
        run(db, "CREATE DATABASE shop", "CREATE DATABASE d")
        run(db, "CREATE TABLE shop.a (id INT PRIMARY KEY)", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        story = await caught_up(server, source_of(server, start="beginning", include=["d.*"]))
        for include in ([], ["shop.*"], ["/(d|shop)\\.a/"]):
            await refused(server, story, match=r"ignore_db is shop.*\(shop\)", include=include)
            found = (await checked(server, include=include))["logged"]
            assert not found.ok
            assert "binlog_ignore_db is shop" in found.detail
        run(db, "INSERT INTO d.a VALUES (1)", "INSERT INTO shop.a VALUES (1)")
        await caught_up(server, source_of(server, exclude=["shop.*"]), story)
        assert len(story.changes) == 1
        # What is said of tables, it leaves out by the session's own database.
        run(db, "USE shop", "TRUNCATE d.a")
        found = (await checked(server, include=["d.*"]))["filters"]
        assert not found.ok
        assert "TRUNCATE" in found.detail


@pytest.mark.parametrize(
    ("filters", "scope", "expected"),
    [
        (Filters(), Scope(), []),
        (Filters(ignore=("mysql", "shop")), Scope(), ["shop"]),
        (Filters(ignore=("mysql", "shop")), Scope(exclude=("shop.*",)), []),
        (Filters(ignore=("shop",)), Scope(exclude=("shop.a",)), ["shop"]),
        (Filters(ignore=("shop", "new")), Scope(include=("d.*", "n?w.a")), ["new"]),
        (Filters(ignore=("shop",)), Scope(include=(r"/shop\.orders/",)), ["shop"]),
        (Filters(ignore=("new",)), Scope(include=(r"/new\..*/",)), ["new"]),
        (Filters(do=("shop",)), Scope(), ["*", "d"]),
        (Filters(do=("shop", "d")), Scope(exclude=("d.*",)), ["*"]),
        (Filters(do=("shop",)), Scope(include=("shop.*", r"/shop\..*/", "mysql.*")), []),
        (Filters(do=("shop",)), Scope(include=("s*.orders", "new.a")), ["new", "s*"]),
        (Filters(do=("shop",)), Scope(include=(r"/.*\.things/",)), ["d"]),
        (Filters(do=("shop",), ignore=("shop",)), Scope(include=("shop.*",)), []),
    ],
)
def test_a_database_that_may_come_to_be_captured_must_be_logged(
    filters: Filters, scope: Scope, expected: list[str]
) -> None:
    there = [("shop", "orders"), ("d", "things"), ("mysql", "user")]
    assert filters.left_out(scope, there) == expected
