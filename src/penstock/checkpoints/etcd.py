"""Published copies in etcd (3.4 and later), through its JSON gateway.

One key an instance. A write is a transaction that compares the key's mod_revision, so that of two
writers one is refused; a missing key has mod_revision 0. Reads are linearizable by default.
Source: etcd documentation, "API" (Transaction, Range) and "gRPC gateway".
"""

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import requests
from etcd3gw import Etcd3Client
from etcd3gw.exceptions import ConnectionFailedError, ConnectionTimeoutError, Etcd3Exception

from penstock.causes import unreached
from penstock.checkpoints.config import CheckpointConfig
from penstock.checkpoints.record import pack, unpack
from penstock.checkpoints.tls import TlsFiles, untrusted
from penstock.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointStoreError,
    CheckpointUnavailableError,
    CheckpointUntrustedError,
)
from penstock.ports import Checkpoint, Kept

PREFIX: Final = "/penstock/checkpoints/"
"""Followed by the instance's name."""
_API: Final = "/v3/"
_NO_ANSWER: Final = (ConnectionFailedError, ConnectionTimeoutError)
_FULL: Final = "database space exceeded"
Answer = TypeVar("Answer")


class EtcdCheckpoints:
    """A `CheckpointStore` in etcd. Blocking calls run in a thread, one at a time."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._turn = asyncio.Lock()
        self._sessions = [_Member(config, endpoint) for endpoint in config.endpoints]

    async def read(self, instance: str) -> Kept | None:
        """As `CheckpointStore.read`."""
        found = await self._ask("kv/range", {"key": _text(PREFIX + instance)})
        for kv in found.get("kvs", ()):
            value = base64.b64decode(kv["value"])
            checkpoint = unpack(value, where=f"etcd under {PREFIX}{instance}")
            return Kept(checkpoint, int(kv["mod_revision"]))
        return None

    async def write(self, checkpoint: Checkpoint, *, replacing: int | None) -> int:
        """As `CheckpointStore.write`."""
        key = _text(PREFIX + checkpoint.instance)
        value = base64.b64encode(pack(checkpoint)).decode()
        unchanged = {
            "key": key,
            "result": "EQUAL",
            "target": "MOD",
            "mod_revision": str(replacing or 0),
        }
        transaction = {
            "compare": [unchanged],
            "success": [{"request_put": {"key": key, "value": value}}],
        }
        answer = await self._ask("kv/txn", transaction)
        if not answer.get("succeeded"):
            raise CheckpointConflictError(instance=checkpoint.instance)
        return int(answer["header"]["revision"])

    async def clear(self, instance: str) -> None:
        """As `CheckpointStore.clear`."""
        await self._ask("kv/deleterange", {"key": _text(PREFIX + instance)})

    async def close(self) -> None:
        """Give the connections back; waits for a call under way."""
        async with self._turn:
            for member in self._sessions:
                member.close()

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One call, to the first member that answers; the others are tried next time too."""
        async with self._turn:
            call = asyncio.ensure_future(asyncio.to_thread(self._ask_members, path, body))
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                # A thread cannot be cancelled, and its session is not for two.
                await asyncio.gather(call, return_exceptions=True)
                raise

    def _ask_members(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        failed: CheckpointError | None = None
        for member in list(self._sessions):
            try:
                return member.ask(path, body)
            except (CheckpointUnavailableError, CheckpointUntrustedError) as error:
                # Of several reasons, the one that somebody must mend.
                if not isinstance(failed, CheckpointUntrustedError):
                    failed = error
                self._sessions.append(self._sessions.pop(0))
        assert failed is not None
        raise failed


class _Member:
    """One member of the cluster, and our session with it."""

    def __init__(self, config: CheckpointConfig, endpoint: str) -> None:
        url = urlsplit(endpoint)
        self._config = config
        self._session = requests.Session()
        # A proxy for the web is not the way to a store beside us.
        self._session.trust_env = False
        self._url = url
        self._files = TlsFiles(ca=config.ca, certificate=config.certificate, key=config.key)
        if config.ca is not None:
            self._session.verify = str(config.ca)
        if config.certificate is not None and config.key is not None:
            self._session.cert = (str(config.certificate), str(config.key))
        self._client = Etcd3Client(
            host=url.hostname or "",
            port=url.port or 2379,
            protocol=url.scheme,
            timeout=config.timeout,
            api_path=_API,
            session=self._session,
        )
        self._signed_in = config.username is None

    def close(self) -> None:
        self._session.close()

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The member's answer. A token that has expired is renewed once."""
        try:
            return self._translated(lambda: self._asked(path, body))
        except CheckpointUnavailableError:
            reason = self._untrusted()
            if reason is None:
                raise
            raise reason from None

    def _untrusted(self) -> CheckpointUntrustedError | None:
        """Whether it is not asked at all because one of us does not trust the other."""
        if self._url.scheme != "https":
            return None
        host, port = self._url.hostname or "", self._url.port or 2379
        return untrusted(host, port, self._files, timeout_seconds=self._config.timeout)

    def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if not self._signed_in:
            self._sign_in()
            return self._post(path, body)
        try:
            return self._post(path, body)
        except Etcd3Exception as error:
            if self._config.username is None or "invalid auth token" not in _detail(error):
                raise
            self._sign_in()
            return self._post(path, body)

    def _sign_in(self) -> None:
        password = self._config.password
        self._session.headers.pop("Authorization", None)
        answer = self._post(
            "auth/authenticate",
            {
                "name": self._config.username,
                "password": password.get_secret_value() if password else "",
            },
        )
        self._session.headers["Authorization"] = answer["token"]
        self._signed_in = True

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.post(self._client.get_url(path), json=body)
        return answer

    def _translated(self, call: Callable[[], Answer]) -> Answer:
        """What `call` returns. Errors keep no text of etcd's that could quote a secret or a URL."""
        try:
            return call()
        except Etcd3Exception as error:
            detail = _detail(error)
            refused = [
                sentence
                for sentence in (
                    "authentication failed",
                    "permission denied",
                    "user name is empty",
                    "user name not found",
                    "request is too large",
                    "authentication is not enabled",
                )
                if sentence in detail
            ]
            if refused:
                raise CheckpointStoreError(
                    f"etcd refuses: {refused[0]}. Nothing was published, and the positions in the "
                    f"log are safe. Correct [checkpoint], or what its user may do in etcd."
                ) from None
            raise self._unavailable(error) from None
        except (requests.RequestException, OSError) as error:
            # An OSError of its own is a file of ours that is not there.
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> CheckpointUnavailableError:
        host, port = self._url.hostname or "", self._url.port or 2379
        remedy = "Is one of [checkpoint] endpoints up, and https if it says so?"
        if found := unreached(host, port, error):
            why = found.what
        elif isinstance(error, Etcd3Exception) and not isinstance(error, _NO_ANSWER):
            full = _FULL in _detail(error)
            why = f"{host}:{port} {'has no space left' if full else 'answers with an error'}"
            remedy = (
                "Compact and defragment it, then run `etcdctl alarm disarm`."
                if full
                else f"See the log of etcd: it is {type(error).__name__} to its client."
            )
        else:
            why = f"{host}:{port} does not answer ({type(error).__name__})"
        return CheckpointUnavailableError(
            f"etcd: {why}. Capture goes on, the positions in the log are safe, and publishing is "
            f"tried again. {remedy}",
            why=f"etcd: {why}",
            remedy=remedy,
        )


def _detail(error: Etcd3Exception) -> str:
    return f"{error.detail_text or ''} {error}"


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
