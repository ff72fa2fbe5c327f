"""Each cause for which a server cannot be reached has a sentence of its own, with where and what
to do."""

import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.checks import Level
from penstock.errors import ConfigError, PenstockError, SourceUnavailableError
from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.restoring.server import Failure, Server, Target
from penstock.sources.mysql.restoring.sql import Statement
from tests.mysql.conftest import on
from tests.mysql.support import Story, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import SqlServer, free_ports


async def refused(server: SqlServer, **options: Any) -> PenstockError:
    """What a source stops with; the doctor says the same sentence."""
    source = source_of(server, **{"connect_timeout": 5, **options})
    with pytest.raises(PenstockError) as error:
        await follow(source, Story(), lambda _: True)
    (check,) = await doctor("db", source.config)
    assert (check.name, check.level, check.detail) == ("connection", Level.ERROR, str(error.value))
    return error.value


@contextmanager
def listening(greeting: bytes | None) -> Generator[int]:
    """The port of something that greets whoever connects, or says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while greeting is not None:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(greeting)

        greeter = threading.Thread(target=greet)
        greeter.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            greeter.join()


async def test_where_no_server_answers_the_host_the_port_and_the_cause_are_said(
    mariadb: SqlServer,
) -> None:
    (free,) = free_ports(1)
    unknown = await refused(mariadb, host="nowhere.invalid")
    absent = await refused(mariadb, port=free)
    with listening(None) as port:
        mute = await refused(mariadb, port=port, connect_timeout=0.3)
    for error, sentence in (
        (unknown, "the host name nowhere.invalid is not known"),
        (absent, rf"nothing listens at 127\.0\.0\.1:{free} .*correct host and port"),
        (mute, rf"127\.0\.0\.1:{port} does not answer .* within 0\.3 seconds.*firewall"),
    ):
        assert re.search(sentence, str(error)), error
        assert "tries again by itself" in str(error)
        assert isinstance(error, SourceUnavailableError)
    with listening(b"SSH-2.0-OpenSSH_9.9\r\n") as port:
        other = await refused(mariadb, port=port)
    assert re.search(rf"answers at 127\.0\.0\.1:{port} is no MariaDB or MySQL", str(other))
    assert isinstance(other, ConfigError)


@on("mariadb", "mysql")
async def test_who_is_not_let_in_is_told_why(server: SqlServer, database: str) -> None:
    """No grant is named to whoever has the wrong password, and no password is shown."""
    users = {
        "fit": "'%' IDENTIFIED BY 's3cret'",
        "far": "'10.9.9.9' IDENTIFIED BY 's3cret'",
        "locked": "'%' IDENTIFIED BY 's3cret' ACCOUNT LOCK",
        "expired": "'%' IDENTIFIED BY 's3cret' PASSWORD EXPIRE",
        "tls": "'%' IDENTIFIED BY 's3cret' REQUIRE SSL",
    }
    where = f"127.0.0.1:{server.port}"
    login = f"the user name or password of 'USER' is wrong, or it may not .* at {where}"
    causes = {
        "fit": (login, "Correct user and password"),
        "absent": (login, "Correct user and password"),
        "far": (login, "the account must exist for this machine's host"),
        "locked": (f"the account of 'locked' is locked at {where}", "ACCOUNT UNLOCK"),
        "expired": (f"the password of 'expired' has expired at {where}", "IDENTIFIED BY"),
        "tls": (login, "set tls if it REQUIREs SSL"),
    }
    made = {name: f"'{name}_{database}'" for name in causes}
    with server.connect() as db:
        for name, how in users.items():
            run(db, f"CREATE USER {made[name]}@{how}")
        try:
            for name, (sentence, remedy) in causes.items():
                password = "wr0ng" if name == "fit" else "s3cret"
                who = made[name].strip("'")
                error = await refused(server, user=who, password=password)
                said = str(error).replace(f"_{database}", "")
                assert re.search(sentence.replace("USER", name), said), said
                assert remedy in said
                assert isinstance(error, ConfigError)
                assert "GRANT" not in said
                assert password not in said
        finally:
            for name, how in users.items():
                run(db, f"DROP USER {made[name]}@{how.partition(' ')[0]}")


@on("mariadb", "mysql")
async def test_a_missing_grant_is_given_to_the_account_that_the_server_takes_us_for(
    server: SqlServer, database: str
) -> None:
    """And what is printed is run as it is, after which the source captures."""
    who = f"o'c_{database[-20:]}"
    account = f"'{who.replace(chr(39), chr(39) * 2)}'@'127.0.0.%'"
    options: dict[str, Any] = {"user": who, "password": "s", "include": [f"{database}.*"]}
    with server.connect() as db:
        run(db, f"CREATE USER {account} IDENTIFIED BY 's'")
        try:
            *_, check = await doctor("db", config_of(server, **options))
            assert (check.name, check.level) == ("privileges", Level.ERROR)
            assert f"{account} lacks a privilege at 127.0.0.1:{server.port}" in check.detail
            with pytest.raises(ConfigError) as error:
                await follow(source_of(server, **options), Story(), lambda _: True)
            assert str(error.value) == check.detail
            run(db, check.detail.partition("run: ")[2])
            checks = await doctor("db", config_of(server, **options))
            assert [one.name for one in checks if one.level is Level.ERROR] == []
        finally:
            run(db, f"DROP USER {account}")


async def test_tls_that_is_not_there_or_not_trusted_is_said_to_be(
    mariadb: SqlServer, mysql: SqlServer
) -> None:
    with mariadb.connect() as db:
        has = run(db, "SELECT @@have_ssl") == [("YES",)]  # later versions make a certificate
    if not has:
        absent = await refused(mariadb, tls="verify")
        assert f"there is no TLS at 127.0.0.1:{mariadb.port}" in str(absent)
        assert "set tls to off" in str(absent)
        assert isinstance(absent, ConfigError)
    with mysql.connect() as db:
        run(db, "SET GLOBAL require_secure_transport = ON")
        try:
            required = await refused(mysql)
        finally:
            run(db, "SET GLOBAL require_secure_transport = OFF")
    where = f"127.0.0.1:{mysql.port}"
    assert f"takes encrypted connections only at {where} (3159)" in str(required)
    assert "Set tls to verify" in str(required)
    strange = await refused(mysql, tls="verify")
    assert f"certificate of 127.0.0.1:{mysql.port} is not trusted (self-signed" in str(strange)
    assert "Set ca to the authority" in str(strange)
    missing = await refused(mysql, tls="verify", ca="/no/ca")
    assert "ca, certificate or key cannot be used (No such file or directory)" in str(missing)
    for one in (strange, missing):  # files are renewed
        assert isinstance(one, SourceUnavailableError)


async def test_a_way_to_log_in_that_lacks_its_package_is_said_to(mariadb: SqlServer) -> None:
    with mariadb.connect() as db:
        ((folder,),) = run(db, "SELECT @@plugin_dir")
        if not (Path(folder) / "auth_ed25519.so").exists():
            pytest.skip("this MariaDB comes without the plugin")
        run(db, "INSTALL SONAME 'auth_ed25519'")
        run(db, "CREATE USER curve IDENTIFIED VIA ed25519 USING PASSWORD('s')")
        try:
            error = await refused(mariadb, user="curve", password="s")
        finally:
            run(db, "DROP USER curve", "UNINSTALL SONAME 'auth_ed25519'")
    assert re.search(r"'curve' cannot log in at .*'pynacl' package is required", str(error))
    assert isinstance(error, ConfigError)


def test_a_server_that_is_restored_to_is_told_of_by_the_same_causes(
    mariadb: SqlServer, mariadb_database: str
) -> None:
    (free,) = free_ports(1)
    database = mariadb_database
    who, where = f"r_{database[-20:]}", f"127.0.0.1:{mariadb.port}"
    target = Target(host="127.0.0.1", port=mariadb.port, user=who)
    with mariadb.connect() as db:
        run(db, f"CREATE USER {who} IDENTIFIED BY 's3cret'")
        try:
            for wrong, what, remedy in (
                ({}, f"password of '{who}' is wrong, or .* at {where}", "Correct user and"),
                ({"port": free}, f"nothing listens at 127.0.0.1:{free}", "correct host and port"),
                ({"host": "nowhere.invalid"}, "host name nowhere.invalid is not known", "host"),
                ({"tls": "verify", "ca": "/no/ca"}, "/no/ca, cannot be used", "its path"),
            ):
                with pytest.raises(ConfigError, match=f"target: .*{what}") as error:
                    Server(structs.replace(target, **wrong), "wr0ng")
                assert remedy in str(error.value)
                assert "wr0ng" not in str(error.value)
            grant = f"run: GRANT ALL ON *.* TO '{who}'@'%'"
            with Server(target, "s3cret") as server:
                (failed,) = _failures(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
                assert f"{who} lacks a privilege at {where} (1142)" in failed.what
                assert failed.what.endswith(grant)
                run(db, failed.what.partition("run: ")[2])
            with Server(target, "s3cret") as server:
                assert _failures(server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)") == []
        finally:
            run(db, f"DROP USER {who}")


def _failures(server: Server, text: str) -> list[Failure]:
    found: list[Failure] = []
    server.run([Statement(text=text, about="it")], on_failure=found.append)
    return found
