"""What the doctor finds, and what the configuration refuses."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.errors import ConfigError, SourceUnavailableError
from penstock.sources.mysql import MysqlSourceConfig
from penstock.sources.mysql.doctor import doctor
from tests.mysql.support import Story, caught_up, config_of, purge, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer

Start = Callable[..., MariaDbServer]


async def checked(
    server: MariaDbServer, story: Story | None = None, **options: Any
) -> dict[str, Any]:
    """By name: what is not right."""
    position = None if story is None else story.position
    checks = await doctor("db", config_of(server, **options), position=position)
    return {check.name: check for check in checks if not check.ok}


async def test_a_server_that_is_fit_has_nothing_to_mend(start_mariadb: Start) -> None:
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
    story = await caught_up(server, source_of(server, start="beginning"))
    assert await checked(server, story) == {}


async def test_what_is_not_right_is_named_with_what_mends_it(start_mariadb: Start) -> None:
    server = start_mariadb()
    with server.connect() as db:
        run(
            db,
            "CREATE DATABASE d",
            "CREATE TABLE d.p (id INT PRIMARY KEY)",
            "CREATE TABLE d.c (id INT PRIMARY KEY, p INT, "
            "FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
            "CREATE TABLE d.n (n INT)",
            "CREATE TABLE d.u (n INT, UNIQUE (n))",
            "CREATE TABLE d.k (n INT NOT NULL, m INT, UNIQUE (n), UNIQUE (m))",
        )
        story = await caught_up(server, source_of(server, start="beginning", on_cascades="ignore"))
        run(db, "INSERT INTO d.n VALUES (1)", "FLUSH BINARY LOGS")
        purge(db)
        run(
            db,
            "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
            "SET GLOBAL gtid_strict_mode = OFF",
            "SET GLOBAL binlog_expire_logs_seconds = 3600",
        )
    wrong = await checked(server, story)
    assert wrong.keys() == {"binlog", "gtid order", "expiry", "keys", "foreign keys", "position"}
    assert "SET GLOBAL binlog_row_metadata = 'FULL'" in wrong["binlog"].fix
    assert "d.c" in wrong["foreign keys"].detail
    assert set(wrong["keys"].detail.rpartition(": ")[2].split(", ")) == {"d.n", "d.u"}
    assert "were purged" in wrong["position"].detail
    fewer = await checked(server, story, include=["d.p"])
    assert fewer.keys() == wrong.keys() - {"keys", "foreign keys"}


async def test_rows_that_lack_columns_are_advised_against_where_they_are_decoded(
    start_mariadb: Start,
) -> None:
    server = start_mariadb()
    with server.connect() as db:
        run(db, "SET GLOBAL binlog_row_image = 'MINIMAL'")
    assert (await checked(server)).keys() == {"binlog"}
    wrong = await checked(server, on_partial_rows="decode")
    assert wrong.keys() == {"row image"}
    assert "SET GLOBAL binlog_row_image = 'FULL'" in wrong["row image"].fix
    await caught_up(server, source_of(server, on_partial_rows="decode"))


async def test_a_user_who_may_not_read_the_binlog_is_told_the_grant(start_mariadb: Start) -> None:
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE USER cdc IDENTIFIED BY 'secret'", "CREATE DATABASE d")
        run(db, "GRANT SELECT ON *.* TO cdc")
    options: dict[str, Any] = {"user": "cdc", "password": "secret"}
    wrong = await checked(server, **options)
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO 'cdc'@'%'" in str(wrong)
    with pytest.raises(ConfigError, match="GRANT REPLICATION SLAVE"):
        await follow(source_of(server, **options), Story(), lambda _: False)
    with pytest.raises(ConfigError, match="password of 'cdc' is wrong"):
        await follow(source_of(server, user="cdc", password="wrong"), Story(), lambda _: False)
    with server.connect() as db:
        run(db, "REVOKE SELECT ON *.* FROM cdc")
        run(db, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO cdc")
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY)", "INSERT INTO d.b VALUES (1)")
        with pytest.raises(ConfigError, match=r"GRANT .* SELECT"):
            # It could not tell a computed column from another.
            await caught_up(server, source_of(server, start="beginning", **options))
        run(db, "GRANT SELECT ON *.* TO cdc", "DROP TABLE d.b")
        run(db, "CREATE TABLE d.a (id INT PRIMARY KEY, v INT AS (id) VIRTUAL)")
        run(db, "INSERT INTO d.a (id) VALUES (1)")
        assert await checked(server, **options) == {}
        story = await caught_up(server, source_of(server, start="beginning", **options))
    assert story.rows() == {"d.a": {'{"id":1}': {"id": 1}}}


async def test_whether_statements_will_come_is_told_and_stops_nobody(start_mariadb: Start) -> None:
    """A26."""
    server = start_mariadb()

    async def said(**options: Any) -> list[str]:
        checks = await doctor("db", config_of(server, **options))
        assert all(check.ok for check in checks)
        return [check.detail for check in checks if check.name == "statements"]

    assert await said() == ["rows come with their statements"]
    with server.connect() as db:
        run(db, "SET GLOBAL binlog_annotate_row_events = OFF")
    (detail,) = await said()
    assert "without the text of their statements" in detail
    assert "SET GLOBAL binlog_annotate_row_events = ON" in detail
    assert await said(statements="off") == []


async def test_a_server_that_is_away_is_a_check_that_is_not_ok(start_mariadb: Start) -> None:
    server = start_mariadb()
    server.stop()
    wrong = await checked(server)
    assert f"nothing listens at 127.0.0.1:{server.port}" in wrong["connection"].detail


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that a server may read which is another user."""
    with TemporaryDirectory(prefix="penstock-tls-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def test_tls_is_spoken_with_the_server_whose_certificate_is_trusted(
    start_mariadb: Start, readable: Path
) -> None:
    key, certificate = readable / "key.pem", readable / "cert.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=db.test"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o644)
    server = start_mariadb(options=[f"--ssl-cert={certificate}", f"--ssl-key={key}"])
    with server.connect() as db:
        run(db, "CREATE USER cdc REQUIRE SSL", "GRANT ALL ON *.* TO cdc")
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "INSERT INTO d.a VALUES (1)")
    for options in ({"tls": "verify", "ca": certificate}, {"tls": "unverified"}):
        source = source_of(server, start="beginning", user="cdc", **options)
        assert len((await caught_up(server, source)).changes) == 1
    with pytest.raises(ConfigError):
        await follow(source_of(server, user="cdc"), Story(), lambda _: False)
    other_name = r"certificate of localhost:\d+ is not trusted \(Hostname mismatch.*host to a name"
    named = source_of(server, user="cdc", host="localhost", tls="verify", ca=certificate)
    with pytest.raises(SourceUnavailableError, match=other_name):
        await follow(named, Story(), lambda _: False)
    with pytest.raises(SourceUnavailableError, match=r"certificate of .* is not trusted"):
        await follow(source_of(server, user="cdc", tls="verify"), Story(), lambda _: False)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"include": ["orders"]}, "is not `database.table`"),
        ({"ca": "ca.pem"}, "tls = 'verify'"),
        ({"tls": "verify", "key": "key.pem"}, "the certificate that it is of"),
        ({"hots": "x"}, "Extra inputs"),
        ({"server_id": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(written: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        MysqlSourceConfig.model_validate({"user": "u", **written})


def test_a_password_is_never_shown() -> None:
    salted = {"hash": ["*.*.email"], "hash_salt": "hunter2-hunter2-hunter2"}
    config = MysqlSourceConfig.model_validate(
        {"user": "u", "password": "hunter2", "columns": salted}
    )
    assert "hunter2" not in repr(config) + json.dumps(config.model_dump(), default=str)
    assert "hunter2" not in repr(config.scope)


def test_files_are_beside_the_configuration() -> None:
    config = MysqlSourceConfig.model_validate({"user": "u", "tls": "verify", "ca": "ca.pem"})
    assert config.beside(Path("/etc/penstock")).ca == Path("/etc/penstock/ca.pem")
