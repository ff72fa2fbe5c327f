"""TLS and mutual TLS, on every protocol."""

import asyncio
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.serve_process import renewed
from penstock.client import Credentials, Retry, follow, follow_sync
from penstock.client.flight import LogClient
from penstock.clocks import SystemClock
from penstock.errors import ConfigError, ServiceUnavailableError, UnauthenticatedError
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.serve.access import Access, AccessConfig, TlsConfig
from penstock.serve.config import ServeConfig
from penstock.serve.dynamodb.captured.index import CapturedIndex
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.server import serving_captured
from penstock.serve.flight import FlightServer
from penstock.serve.grpc import serve_grpc
from penstock.serve.listen import HttpServer
from penstock.spark.options import parse_options
from penstock.subscribe.resume import oldest
from tests.access.certificates import Authority
from tests.access.support import ALL, Service, issue, service
from tests.cli.service import penstock
from tests.subscribe.events import one_each

NO_RETRY = Retry(initial_seconds=0.01, max_seconds=0.01, max_retries=1)


def tls_of(folder: Path, authority: Authority, *, mutual: bool = False) -> dict[str, Any]:
    """[serve.tls] with files in `folder`."""
    certificate, key = authority.sign("localhost").write(folder, "server")
    said: dict[str, Any] = {"certificate": certificate, "key": key}
    if mutual:
        roots = folder / "clients.crt"
        roots.write_bytes(authority.certificate)
        said |= {"client_ca": roots, "require_client_certificate": True}
    return said


async def grpc_answers(served: Service, shown: Credentials) -> str:
    after = str(oldest(await served.log.bounds()))
    try:
        async with follow(served.grpc, after=after, credentials=shown, retry=NO_RETRY) as changes:
            return (await anext(changes)).collection
    except (ServiceUnavailableError, UnauthenticatedError) as error:
        return error.code


async def flight_answers(served: Service, shown: Credentials) -> str:
    def ask() -> str:
        with LogClient(served.flight, patience_seconds=0, credentials=shown) as client:
            try:
                return str(client.bounds().head)
            except (ServiceUnavailableError, UnauthenticatedError) as error:
                return error.code

    return await asyncio.to_thread(ask)


async def http_answers(served: Service, context: ssl.SSLContext | None, token: str = "") -> str:
    def ask() -> str:
        scheme = "http" if context is None else "https"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = urllib.request.Request(f"{scheme}://{served.http}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(asked, context=context) as answer:
                return str(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return str(error.code)
        except OSError:
            return "broken"

    return await asyncio.to_thread(ask)


def trusting(authority: Authority, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if own is not None:
        context.load_cert_chain(*own)
    return context


@pytest.mark.slow
async def test_every_protocol_is_encrypted_and_trusted_only_by_who_knows_the_signer(
    tmp_path: Path,
) -> None:
    authority, stranger = Authority(), Authority("stranger")
    token = issue(tmp_path / "access.json", "one", verbs=ALL)
    async with service(tmp_path, serve={"tls": tls_of(tmp_path, authority)}) as served:
        await served.log.append(one_each(1, 1))
        right = Credentials(token=token, ca=authority.certificate)
        for wrong in (Credentials(token=token, ca=stranger.certificate), Credentials(token=token)):
            assert await grpc_answers(served, wrong) == "service.unavailable"
            assert await flight_answers(served, wrong) == "service.unavailable"
        assert await grpc_answers(served, right) == "orders"
        assert await flight_answers(served, right) == "1"
        assert await http_answers(served, trusting(authority), token) == "200"
        assert await http_answers(served, trusting(stranger), token) == "broken"
        assert await http_answers(served, None, token) == "broken"
        nobody = Credentials(ca=authority.certificate)
        assert await grpc_answers(served, nobody) == "access.unauthenticated"

        def sync() -> str:
            after = str(oldest(served.log.bounds_now()))
            with follow_sync(served.grpc, after=after, credentials=right) as changes:
                return next(changes).collection

        assert await asyncio.to_thread(sync) == "orders"


@pytest.mark.slow
async def test_mutual_tls_says_who_somebody_is(tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority("stranger")
    tokens = tmp_path / "access.json"
    issue(tokens, "app", subject="app.example", verbs=ALL)
    async with service(tmp_path, serve={"tls": tls_of(tmp_path, authority, mutual=True)}) as served:
        await served.log.append(one_each(1, 1))

        async def answers(signer: Authority | None, name: str) -> tuple[str, str, str]:
            own = None if signer is None else signer.sign(name)
            shown = Credentials(ca=authority.certificate)
            files = None
            if own is not None:
                shown = Credentials(
                    ca=authority.certificate, certificate=own.certificate, key=own.key
                )
                files = own.write(tmp_path, name)
            return (
                await grpc_answers(served, shown),
                await flight_answers(served, shown),
                await http_answers(served, trusting(authority, files)),
            )

        unknown = "access.unauthenticated"
        away = "service.unavailable"
        assert await answers(authority, "app.example") == ("orders", "1", "200")
        assert await answers(authority, "other.example") == (unknown, unknown, "401")
        assert await answers(stranger, "app.example") == (away, away, "broken")
        assert await answers(None, "") == (away, away, "broken")


@pytest.mark.slow
async def test_commands_and_spark_show_a_certificate_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    tokens = tmp_path / "access.json"
    issue(tokens, "app", subject="app.example", verbs=ALL)
    ca = tmp_path / "clients.crt"
    async with service(tmp_path, serve={"tls": tls_of(tmp_path, authority, mutual=True)}) as served:
        await served.log.append(one_each(1, 1))
        after = str(oldest(await served.log.bounds()))
        certificate, key = authority.sign("app.example").write(tmp_path, "app")

        async def tail(*more: str) -> tuple[int, str]:
            asked = ("tail", "--endpoint", served.grpc, "--after", after, "--limit", "1", "--json")
            done = await asyncio.to_thread(penstock, capsys, *asked, *more)
            return done.code, done.out + done.err

        own = ("--tls-certificate", str(certificate), "--tls-key", str(key))
        code, said = await tail("--tls-ca", str(ca), *own)
        assert (code, "orders" in said) == (0, True)
        assert "certificate" in (await tail("--tls-ca", str(ca), *own[:2]))[1]
        assert "tls_ca" in (await tail(*own))[1]
        monkeypatch.setenv("PENSTOCK_TLS_CA", str(ca))
        monkeypatch.setenv("PENSTOCK_TLS_CERTIFICATE", str(certificate))
        monkeypatch.setenv("PENSTOCK_TLS_KEY", str(key))
        assert (await tail())[0] == 0
        for given in (
            {"tlsCa": str(ca), "tlsCertificate": str(certificate), "tlsSecretKey": str(key)},
            {
                "tlsCa": ca.read_text(),
                "tlsCertificate": certificate.read_text(),
                "tlsSecretKey": key.read_text(),
            },
        ):
            shown = parse_options(given, starting_default="latest").credentials
            assert await flight_answers(served, shown) == "1"


@pytest.mark.slow
async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    before, after = Authority(), Authority("after")
    token = issue(tmp_path / "access.json", "one", verbs=ALL)
    async with service(tmp_path, serve={"tls": tls_of(tmp_path, before)}) as served:
        await served.log.append(one_each(1, 1))
        old = Credentials(token=token, ca=before.certificate)
        new = Credentials(token=token, ca=after.certificate)
        assert await grpc_answers(served, old) == "orders"
        tls = tls_of(tmp_path, after)
        assert served.web is not None
        served.web.renew(TlsConfig.model_validate(tls))
        assert await grpc_answers(served, new) == "orders"
        assert await grpc_answers(served, old) == "service.unavailable"
        assert await http_answers(served, trusting(after), token) == "200"
        # One that cannot be used leaves the one before.
        (tmp_path / "server.key").write_text("no key")
        with pytest.raises(ConfigError, match="cannot be used"):
            served.web.renew(TlsConfig.model_validate(tls))
        assert await grpc_answers(served, new) == "orders"
        assert await http_answers(served, trusting(after), token) == "200"


async def test_a_changed_certificate_is_shown_by_dynamodb_streams(tmp_path: Path) -> None:
    before, after = Authority(), Authority()
    tls = TlsConfig.model_validate(tls_of(tmp_path, before))
    config = CapturedConfig(address="localhost:0")
    bound: list[HttpServer] = []

    def answers(address: str, authority: Authority) -> bool:
        try:
            with urllib.request.urlopen(f"https://{address}/", context=trusting(authority)):
                return True
        except OSError:
            return False

    async with LmdbLog(LogConfig(path=tmp_path / "log")) as log:
        index = CapturedIndex(log, tmp_path / "index", config, clock=SystemClock())
        async with serving_captured(
            log, index, config, access=Access(AccessConfig()), tls=tls, bound=bound.append
        ) as address:
            assert await asyncio.to_thread(answers, address, before)
            tls_of(tmp_path, after)
            (server,) = bound
            renewed(server, tls)
            assert await asyncio.to_thread(answers, address, after)
            assert not await asyncio.to_thread(answers, address, before)


@pytest.mark.parametrize("what", ["missing", "no key", "of another"])
async def test_a_certificate_that_cannot_be_used_starts_nothing(tmp_path: Path, what: str) -> None:
    said = tls_of(tmp_path, Authority())
    if what == "missing":
        said["certificate"].unlink()
    elif what == "no key":
        said["key"].write_text("no key")
    else:
        said["key"].write_bytes(Authority().sign("localhost").key)
    config = ServeConfig.model_validate({"grpc": "127.0.0.1:0", "tls": said})
    with pytest.raises(ConfigError, match="Nothing was started"):
        await serve_grpc(MemoryLog(), config)
    with pytest.raises(ConfigError, match="Nothing was started"):
        FlightServer(MemoryLog(), "127.0.0.1:0", tls=config.tls).start()


async def test_an_address_that_others_reach_needs_both_tls_and_tokens(tmp_path: Path) -> None:
    tls = tls_of(tmp_path, Authority())
    tokens = AccessConfig(tokens=tmp_path / "access.json")
    open_ = AccessConfig(tokens=tmp_path / "access.json", required=False)
    config = ServeConfig.model_validate({"grpc": "0.0.0.0:0", "tls": tls})
    for access in (AccessConfig(), open_):
        with pytest.raises(ConfigError, match="both TLS"):
            await serve_grpc(MemoryLog(), config, access=Access(access))
        with pytest.raises(ConfigError, match="both TLS"):
            FlightServer(MemoryLog(), "0.0.0.0:0", tls=config.tls, access=Access(access))
    with pytest.raises(ValueError, match="both TLS"):
        ServeConfig.model_validate({"flight": "0.0.0.0:0"})
    async with await serve_grpc(MemoryLog(), config, access=Access(tokens)) as server:
        assert server.address.startswith("0.0.0.0:")
