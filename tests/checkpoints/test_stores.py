"""Both stores keep the one contract, on real servers, and say what is wrong when they cannot."""

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pymongo import MongoClient

from penstock.checkpoints import CheckpointConfig, open_store
from penstock.checkpoints.etcd import PREFIX
from penstock.errors import (
    CheckpointStoreError,
    CheckpointUnavailableError,
    CheckpointUntrustedError,
)
from penstock.ports import CheckpointStore
from penstock.testing.contracts import CheckpointStoreContract
from penstock.testing.contracts.checkpoints import checkpoint
from tests_support.servers import EtcdServer, EtcdTls, MongoReplicaSet, free_ports

Key = ec.EllipticCurvePrivateKey


def store(**options: Any) -> CheckpointStore:
    found = open_store(CheckpointConfig.model_validate({"instance": "x", **options}))
    assert found is not None
    return found


def etcd_store(*servers: EtcdServer, **options: Any) -> CheckpointStore:
    endpoints = [server.endpoint for server in servers]
    return store(**{"store": "etcd", "endpoints": endpoints, "timeout": 60, **options})


class TestEtcdCheckpoints(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, etcd: EtcdServer) -> None:
        self._etcd = etcd

    def open_store(self) -> CheckpointStore:
        return etcd_store(self._etcd)


class TestMongoCheckpoints(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, mongo: MongoReplicaSet, mongo_database: str) -> None:
        self._uri, self._database = mongo.uri, mongo_database

    def open_store(self) -> CheckpointStore:
        return store(store="mongodb", uri=self._uri, database=self._database, timeout=60)


async def test_an_etcd_that_is_down_is_unavailable_until_it_is_back(
    start_etcd: Callable[[], EtcdServer],
) -> None:
    server = start_etcd()
    opened = etcd_store(server)
    revision = await opened.write(checkpoint("a"), replacing=None)
    server.kill()
    with pytest.raises(CheckpointUnavailableError) as refused:
        await opened.write(checkpoint("a", sequence=11), replacing=revision)
    assert refused.value.transient
    assert server.endpoint not in str(refused.value)
    await asyncio.to_thread(server.restart)
    assert await opened.read("a") == (checkpoint("a"), revision)
    await opened.write(checkpoint("a", sequence=11), replacing=revision)
    await opened.close()


async def test_an_etcd_that_is_full_is_told_as_full_and_taken_again_once_it_has_space(
    start_etcd: Callable[..., EtcdServer],
) -> None:
    server = start_etcd(quota_bytes=1 << 16)
    opened = etcd_store(server)
    revision = await opened.write(checkpoint("a"), replacing=None)

    def ask(path: str, **body: Any) -> dict[str, Any]:
        with requests.Session() as session:
            session.trust_env = False
            answer: dict[str, Any] = session.post(f"{server.endpoint}/v3/{path}", json=body).json()
            return answer

    while "error" not in ask("kv/put", key="Yg==", value="eHh4" * 10_000):
        pass
    with pytest.raises(CheckpointUnavailableError, match="has no space left") as full:
        await opened.write(checkpoint("a", sequence=11), replacing=revision)
    assert "alarm disarm" in str(full.value)
    assert await opened.read("a") == (checkpoint("a"), revision)
    newest = ask("kv/deleterange", key="Yg==")["header"]["revision"]
    ask("kv/compaction", revision=newest, physical=True)
    ask("maintenance/defragment")
    (alarm,) = ask("maintenance/alarm")["alarms"]
    ask("maintenance/alarm", action="DEACTIVATE", **alarm)
    await opened.write(checkpoint("a", sequence=11), replacing=revision)
    await opened.close()


async def test_a_mongod_that_is_down_is_unavailable_until_it_is_back(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    server = start_mongo()
    opened = store(store="mongodb", uri=server.uri, timeout=60)
    revision = await opened.write(checkpoint("a"), replacing=None)
    server.kill(0)
    brief = store(store="mongodb", uri=server.uri, timeout=2)
    with pytest.raises(CheckpointUnavailableError) as refused:
        await brief.write(checkpoint("a", sequence=11), replacing=revision)
    await brief.close()
    assert refused.value.transient
    assert f"{server.addresses[0]} refuses connections" in str(refused.value)
    await asyncio.to_thread(server.restart, 0)
    assert await opened.read("a") == (checkpoint("a"), revision)
    await opened.write(checkpoint("a", sequence=11), replacing=revision)
    await opened.close()


async def test_another_member_is_asked_when_one_is_gone(etcd: EtcdServer) -> None:
    (port,) = free_ports(1)
    endpoints = [f"http://127.0.0.1:{port}", etcd.endpoint]
    opened = store(store="etcd", endpoints=endpoints, timeout=60)
    await opened.write(checkpoint("members"), replacing=None)
    assert await opened.read("members") is not None
    await opened.clear("members")
    await opened.close()


async def test_etcd_with_users_takes_the_right_password_and_refuses_the_wrong_one(
    start_etcd: Callable[[], EtcdServer],
) -> None:
    """A token that etcd has forgotten, as after a restart, is replaced by a new one."""
    server = start_etcd()

    def ask(path: str, **body: Any) -> None:
        with requests.Session() as session:
            session.trust_env = False
            session.post(f"{server.endpoint}/v3/auth/{path}", json=body).raise_for_status()

    ask("user/add", name="root", password="rosebud")
    ask("user/grant", user="root", role="root")
    ask("user/add", name="reader", password="rosebud")
    ask("enable")
    opened = etcd_store(server, username="root", password="rosebud")
    revision = await opened.write(checkpoint("a"), replacing=None)
    await asyncio.to_thread(server.restart)
    await opened.write(checkpoint("a", sequence=11), replacing=revision)
    await opened.close()
    for username, password, why in (
        ("root", "wrong-secret", "authentication failed"),
        ("reader", "rosebud", "permission denied"),
    ):
        opened = etcd_store(server, username=username, password=password)
        with pytest.raises(CheckpointStoreError, match=why) as refused:
            await opened.read("a")
        assert not refused.value.transient
        assert password not in str(refused.value)
        await opened.close()


def tls_files(folder: Path) -> EtcdTls:
    """An authority, and a certificate of it for 127.0.0.1, as files."""
    folder.mkdir(exist_ok=True)
    now = datetime.now(UTC)

    def signed(name: str, subject_key: Key, issuer: str, issuer_key: Key) -> x509.Certificate:
        authority = name == issuer
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(subject_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(issuer_key, hashes.SHA256())
        )

    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    files = EtcdTls(ca=folder / "ca.pem", certificate=folder / "cert.pem", key=folder / "key.pem")
    pem = serialization.Encoding.PEM
    authority = signed("ca", authority_key, "ca", authority_key)
    files.ca.write_bytes(authority.public_bytes(pem))
    files.certificate.write_bytes(signed("etcd", key, "ca", authority_key).public_bytes(pem))
    files.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


async def test_etcd_over_tls_wants_our_certificate_and_its_own_to_be_trusted(
    tmp_path: Path, start_etcd: Callable[..., EtcdServer]
) -> None:
    files = tls_files(tmp_path)
    server = start_etcd(tls=files)
    ours: dict[str, Any] = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    opened = etcd_store(server, **ours)
    await opened.write(checkpoint("a"), replacing=None)
    assert await opened.read("a") is not None
    await opened.close()
    other = tls_files(tmp_path / "other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    not_trusted, not_ours = "certificate is not trusted: no cert", "it does not trust ours"
    file = "is not there, cannot be read"
    for wrong, why in (
        ({"ca": None}, not_trusted),
        ({"ca": other.ca}, not_trusted),
        ({"certificate": None, "key": None}, "wants a certificate of us, and we show none"),
        ({"certificate": other.certificate, "key": other.key}, not_ours),
        ({"key": other.key}, file),
        ({"ca": tmp_path / "nowhere.pem"}, file),
        ({"certificate": tmp_path / "nowhere.pem"}, file),
        ({"ca": garbage}, file),
        ({"endpoints": [server.endpoint.replace("127.0.0.1", "localhost")]}, "another host name"),
    ):
        opened = etcd_store(server, **{**ours, **wrong})
        with pytest.raises(CheckpointUntrustedError, match=why) as refused:
            await opened.read("a")
        assert not refused.value.transient
        assert str(tmp_path) not in str(refused.value)
        assert "localhost" not in str(refused.value)
        await opened.close()


@pytest.mark.parametrize(
    ("host", "ca", "why"),
    [
        ("127.0.0.1", "", "has a certificate that is not trusted"),
        ("localhost", "own", "has a certificate that is for another name"),
    ],
)
async def test_a_mongodb_whose_certificate_is_not_trusted_is_not_called_down(
    tmp_path: Path, start_etcd: Callable[..., EtcdServer], host: str, ca: str, why: str
) -> None:
    """No member is spoken to before TLS has agreed, so any TLS server does."""
    files = tls_files(tmp_path)
    port = start_etcd(tls=files).endpoint.rpartition(":")[2]
    options = f"tls=true&tlsCAFile={files.ca}" if ca else "tls=true"
    opened = store(store="mongodb", uri=f"mongodb://{host}:{port}/?{options}", timeout=10)
    with pytest.raises(CheckpointUntrustedError, match=why) as refused:
        await opened.read("a")
    assert f"{host}:{port}" in str(refused.value)
    remedy = "Correct the host in uri" if ca else "Correct tlsCAFile in uri"
    assert f"In [checkpoint]: {remedy}" in str(refused.value)
    await opened.close()


async def test_a_member_that_is_down_or_speaks_no_tls_is_not_called_untrusted(
    tmp_path: Path, etcd: EtcdServer, start_etcd: Callable[..., EtcdServer]
) -> None:
    """What passes is retried; only what somebody must mend is said to need it."""
    files = tls_files(tmp_path)
    ours: dict[str, Any] = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    server = start_etcd(tls=files)
    server.kill()
    for endpoint in (server.endpoint, etcd.endpoint.replace("http", "https")):
        opened = store(store="etcd", endpoints=[endpoint], timeout=2, **ours)
        with pytest.raises(CheckpointUnavailableError):
            await opened.read("a")
        await opened.close()


async def test_a_member_that_is_not_trusted_leaves_the_others_to_answer(
    tmp_path: Path, etcd: EtcdServer, start_etcd: Callable[..., EtcdServer]
) -> None:
    server = start_etcd(tls=tls_files(tmp_path))
    opened = store(store="etcd", endpoints=[server.endpoint, etcd.endpoint], timeout=60)
    await opened.write(checkpoint("trusted"), replacing=None)
    await opened.clear("trusted")
    await opened.close()
    (port,) = free_ports(1)
    down = f"https://127.0.0.1:{port}"
    for endpoints in ([server.endpoint, down], [down, server.endpoint]):
        opened = store(store="etcd", endpoints=endpoints, timeout=2)
        with pytest.raises(CheckpointUntrustedError):
            await opened.read("a")
        await opened.close()


async def test_what_is_not_ours_is_told_and_left_alone(
    etcd: EtcdServer, mongo: MongoReplicaSet, mongo_database: str
) -> None:
    with requests.Session() as session:
        session.trust_env = False
        key = base64.b64encode(f"{PREFIX}alien".encode()).decode()
        alien = base64.b64encode(b'{"version":2,"checkpoint":{}}').decode()
        session.post(f"{etcd.endpoint}/v3/kv/put", json={"key": key, "value": alien})
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        client[mongo_database]["checkpoints"].insert_one({"_id": "alien", "revision": 1})
    for opened, why in (
        (etcd_store(etcd), "is of version 2, and this Penstock knows 1"),
        (
            store(store="mongodb", uri=mongo.uri, database=mongo_database, timeout=60),
            "is not a published copy",
        ),
    ):
        with pytest.raises(CheckpointStoreError, match=why):
            await opened.read("alien")
        await opened.clear("alien")
        await opened.close()
