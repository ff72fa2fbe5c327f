"""What the doctor finds of a MySQL, and how one is connected to."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, SourceUnavailableError
from penstock.sources.mysql.doctor import doctor
from tests.mysql.support import Story, caught_up, config_of, purge, run, source_of
from tests.telling import follow
from tests_support.servers import MySqlServer

Start = Callable[..., MySqlServer]


async def checked(
    server: MySqlServer, story: Story | None = None, **options: Any
) -> dict[str, Any]:
    """By name: what is not right."""
    position = None if story is None else story.position
    checks = await doctor("db", config_of(server, **options), position=position)
    return {check.name: check for check in checks if not check.ok}


async def test_what_is_not_right_is_named_with_what_mends_it(start_mysql: Start) -> None:
    """A22, S2: and of a server that is fit, nothing is named."""
    server = start_mysql()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        story = await caught_up(server, source_of(server, start="beginning"))
        assert await checked(server, story) == {}
        run(db, "CREATE TABLE d.n (n INT)", "FLUSH BINARY LOGS")
        purge(db)
        run(
            db,
            "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
            "SET GLOBAL binlog_row_image = 'MINIMAL'",
            "SET GLOBAL binlog_expire_logs_seconds = 3600",
        )
        wrong = await checked(server, story)
        assert wrong.keys() == {"binlog", "expiry", "keys", "position"}
        assert "were purged" in wrong["position"].detail
        assert "d.n" in wrong["keys"].detail
        run(db, wrong["expiry"].fix, "SET GLOBAL binlog_row_image = 'FULL'")
        with pytest.raises(ConfigError, match="binlog_row_metadata is MINIMAL"):
            await follow(source_of(server), Story(), lambda _: True)
        run(db, (await checked(server))["binlog"].fix.partition(",")[0])
        assert (await checked(server)).keys() == {"keys"}


async def test_rows_that_lack_columns_need_their_statements_which_mysql_must_be_told_to_log(
    mysql: MySqlServer, start_mysql: Start
) -> None:
    assert "partial rows" not in await checked(mysql)
    wrong = (await checked(mysql, on_partial_rows="decode"))["partial rows"]
    assert "binlog_rows_query_log_events is OFF" in wrong.detail
    server = start_mysql(options=["--binlog-rows-query-log-events=ON"])
    assert "partial rows" not in await checked(server, on_partial_rows="decode")


async def test_a_server_without_gtids_is_told_how_to_have_them(start_mysql: Start) -> None:
    server = start_mysql(options=["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"])
    (wrong,) = (await checked(server)).values()
    assert (wrong.name, "no other server" in wrong.detail) == ("gtids", True)
    with server.connect() as db:
        run(db, *filter(None, wrong.fix.partition(" in this order")[0].split("; ")))
    assert await checked(server) == {}


async def test_foreign_keys_are_named_where_the_server_does_not_log_what_they_do(
    start_mysql: Start,
) -> None:
    server = start_mysql(options=["--innodb-native-foreign-keys=ON"])
    with server.connect() as db:
        run(
            db,
            "CREATE DATABASE d",
            "CREATE TABLE d.p (id INT PRIMARY KEY)",
            "CREATE TABLE d.c (id INT PRIMARY KEY, p INT, "
            "FOREIGN KEY (p) REFERENCES d.p (id) ON DELETE CASCADE)",
        )
    assert "d.c" in (await checked(server))["foreign keys"].detail
    with pytest.raises(ConfigError, match="on_cascades = 'ignore'"):
        await follow(source_of(server), Story(), lambda _: True)


async def test_a_user_who_may_not_read_the_binlog_is_told_the_grant(start_mysql: Start) -> None:
    """The default plugin of MySQL, caching_sha2_password, without TLS: by the server's RSA key."""
    server = start_mysql()
    with server.connect() as db:
        run(db, "CREATE USER cdc IDENTIFIED WITH caching_sha2_password BY 'secret'")
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v INT AS (id))")
        run(db, "INSERT INTO d.a (id) VALUES (1)")
        options: dict[str, Any] = {"user": "cdc", "password": "secret"}
        for granted in ("REPLICATION SLAVE", "REPLICATION CLIENT", "SELECT"):
            if granted != "SELECT":  # what cannot be seen is not there, to whoever asks
                grant = "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO 'cdc'@'%'"
                assert grant in str(await checked(server, **options))
            with pytest.raises(ConfigError, match="GRANT REPLICATION SLAVE"):
                await caught_up(server, source_of(server, start="beginning", **options))
            if granted == "REPLICATION CLIENT":  # with GTIDs, only what is left out takes it
                with pytest.raises(ConfigError, match="GRANT REPLICATION SLAVE"):
                    await follow(source_of(server, **options), Story(), lambda _: True)
            run(db, f"GRANT {granted} ON *.* TO cdc")
        assert await checked(server, **options) == {}
        run(db, "FLUSH PRIVILEGES")  # and so the server's cache of passwords
        story = await caught_up(server, source_of(server, start="beginning", **options))
        assert story.rows() == {"d.a": {'{"id":1}': {"id": 1}}}
        with pytest.raises(ConfigError, match="password of 'cdc' is wrong"):
            await follow(source_of(server, user="cdc", password="wrong"), Story(), lambda _: False)


async def test_tls_is_spoken_with_the_server_whose_certificate_is_trusted(
    start_mysql: Start, tmp_path: Path
) -> None:
    """Where a password is never sent but within TLS."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    server = start_mysql(
        options=[f"--ssl-cert={certificate}", f"--ssl-key={key}", f"--ssl-ca={certificate}"]
    )
    with server.connect() as db:
        run(db, "CREATE USER cdc IDENTIFIED BY 'secret' REQUIRE SSL", "GRANT ALL ON *.* TO cdc")
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "INSERT INTO d.a VALUES (1)")
    who: dict[str, Any] = {"user": "cdc", "password": "secret"}
    for options in ({"tls": "verify", "ca": certificate}, {"tls": "unverified"}):
        source = source_of(server, start="beginning", **who, **options)
        assert len((await caught_up(server, source)).changes) == 1
    with pytest.raises(ConfigError):
        await follow(source_of(server, **who), Story(), lambda _: False)
    with pytest.raises(SourceUnavailableError, match=r"certificate of .* is not trusted"):
        await follow(source_of(server, **who, tls="verify"), Story(), lambda _: False)
