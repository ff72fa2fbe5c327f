"""TLS to destinations: spoken with the server that our authority has signed, and with no other."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from penstock.errors import ConfigError, DestinationError, PenstockError
from penstock.spark.config import ReplicatePipelineConfig
from tests.access.certificates import Authority
from tests.conftest import started
from tests.spark.replica.support import Driver, MongoReplica, config_at
from tests.spark.tables import Entries, put
from tests_support.servers import MariaDbServer, MongoReplicaSet, MongoStandalone, PostgresServer

PASSWORD = "correct-horse"


class Files(NamedTuple):
    """Of one authority, and what a server may read of it."""

    ca: Path
    other_ca: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    # A folder that servers may read which are other users.
    with TemporaryDirectory(prefix="penstock-tls-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ours = Authority()
        certificate, key = ours.sign("localhost").write(folder, "server")
        found = Files(folder / "ca.crt", folder / "other.crt", certificate, key)
        found.ca.write_bytes(ours.certificate)
        found.other_ca.write_bytes(Authority("another authority").certificate)
        yield found


def written(config: ReplicatePipelineConfig) -> int:
    """How many rows of a batch a pipeline has written there."""
    entries = Entries()
    entries.commit(put(1, n=1))
    driver = Driver(entries, config)
    try:
        driver.start()
        return driver.apply().rows
    finally:
        driver.close()


def refused(config: ReplicatePipelineConfig, kind: type[PenstockError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        written(config)
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in "".join(map(repr, (caught.value.__cause__, caught.value.__context__)))


def speaks_tls(uri: str, files: Files, untrusted: str, **database: str) -> None:
    """What is promised of each destination whose server has our certificate."""
    refused(
        config_at(uri, tls="verify", ca=files.other_ca, **database), DestinationError, untrusted
    )
    missing = files.ca.with_name("missing.crt")
    refused(config_at(uri, tls="verify", ca=missing, **database), PenstockError, "TLS|ca, cert")
    assert written(config_at(uri, tls="verify", ca=files.ca, **database)) == 1


def test_postgresql(files: Files, start_postgres: Any) -> None:
    # It takes no key that others may read.
    key = files.key.with_name("postgres.key")
    shutil.copy(files.key, key)
    key.chmod(0o600)
    shutil.chown(key, "postgres")
    server: PostgresServer = start_postgres(
        options=["ssl=on", f"ssl_cert_file={files.certificate}", f"ssl_key_file={key}"]
    )
    server.execute(f"CREATE ROLE cdc SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    uri = server.create("replica").replace("postgres@", f"cdc:{PASSWORD}@")
    speaks_tls(uri, files, "certificate verify failed")
    ours: dict[str, Any] = {"tls": "verify", "ca": files.ca, "key": files.key}
    for certificate, mode, what in (
        (files.certificate, 0o644, "has group or world access"),
        (files.key, 0o600, "could not read certificate file"),
        (files.certificate, None, "certificate present, but not private key"),
    ):
        if mode is None:
            ours["key"] = files.ca.with_name("missing.key")
        else:
            files.key.chmod(mode)
        refused(config_at(uri, certificate=certificate, **ours), DestinationError, what)


def test_a_postgresql_without_tls_is_refused(postgres: PostgresServer, files: Files) -> None:
    uri = postgres.uri().replace("postgres@", f"postgres:{PASSWORD}@")
    refused(
        config_at(uri, tls="verify", ca=files.ca), DestinationError, "server does not support SSL"
    )


def test_mariadb(files: Files, start_mariadb: Any) -> None:
    files.key.chmod(0o644)
    server: MariaDbServer = start_mariadb(
        options=[f"--ssl-cert={files.certificate}", f"--ssl-key={files.key}"]
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE replica")
        cursor.execute(f"CREATE USER cdc IDENTIFIED BY '{PASSWORD}' REQUIRE SSL")
        cursor.execute("GRANT ALL ON *.* TO cdc")
    uri = f"mysql://cdc:{PASSWORD}@{server.host}:{server.port}/replica"
    speaks_tls(uri, files, r"certificate of .* is not trusted \(.*Set ca to the authority")
    refused(config_at(uri), DestinationError, r"\(1045\).*set tls if it REQUIREs SSL")
    refused(config_at(uri.replace(PASSWORD, "x"), tls="unverified"), DestinationError, "1045")


def test_mongodb(files: Files, start_mongo: Any) -> None:
    both = files.key.with_name("both.pem")
    both.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    server: MongoReplicaSet = start_mongo(
        extra_args=[
            *("--tlsMode", "preferTLS", "--tlsCertificateKeyFile", str(both)),
            *("--tlsCAFile", str(files.ca), "--tlsAllowConnectionsWithoutCertificates"),
        ]
    )
    uri = server.uri.replace("/?", "/replica?")
    untrusted = r"has a certificate that is not trusted .*Correct ca, or the server"
    speaks_tls(uri, files, untrusted)
    shown = uri.replace("mongodb://", f"mongodb://cdc:{PASSWORD}@")
    refused(
        config_at(shown, tls="verify", ca=files.other_ca),
        DestinationError,
        untrusted,
    )
    refused(config_at(shown, tls="verify", ca=files.ca), DestinationError, "AuthenticationFailed")
    wrong = config_at(shown, tls="verify", ca=files.ca.with_name("missing.crt"))
    refused(wrong, ConfigError, "files for TLS")


@pytest.fixture
def standalone() -> Iterator[MongoStandalone]:
    with ExitStack() as stack:
        server = MongoStandalone()
        started(stack, server)
        yield server


@pytest.mark.server
def test_a_standalone_mongodb_is_refused_with_nothing_written(standalone: MongoStandalone) -> None:
    uri = standalone.uri.replace("/?", "/replica?")
    refused(config_at(uri), DestinationError, "standalone MongoDB, which has no transactions")
    replica = MongoReplica(standalone.uri, "replica")
    try:
        assert replica.database.list_collection_names() == []
    finally:
        replica.close()
