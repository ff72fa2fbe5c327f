"""A real etcd of one member: the program comes from the system (Debian's package etcd-server)."""

import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests_support.servers.packages import ServerUnavailableError
from tests_support.servers.process import Server


@dataclass(frozen=True, kw_only=True)
class EtcdTls:
    """Files of a server that speaks TLS only, and asks its clients for a certificate too.

    `certificate` is the server's, for 127.0.0.1, and ours when we ask whether it is up.
    """

    ca: Path
    certificate: Path
    key: Path

    @property
    def arguments(self) -> list[str]:
        """etcd's own options."""
        return [
            *("--cert-file", str(self.certificate), "--key-file", str(self.key)),
            *("--trusted-ca-file", str(self.ca), "--client-cert-auth"),
        ]


class EtcdServer(Server):
    """One etcd on loopback, with a temporary data folder; it keeps its port over restarts.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    NAME = "etcd"
    PORTS = 2

    def __init__(self, *, tls: EtcdTls | None = None, quota_bytes: int = 0) -> None:
        """`quota_bytes` is how large its database may grow; 0: as large as etcd lets it."""
        super().__init__()
        self._tls = tls
        self._quota_bytes = quota_bytes

    @property
    def endpoint(self) -> str:
        """Its URL, valid once it is started."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._ports[0]}"

    def _require(self) -> None:
        _program()

    def _prepare(self) -> None:
        """etcd makes its data itself."""

    def _command(self) -> Sequence[str]:
        client, peer = self.endpoint, f"http://127.0.0.1:{self._ports[1]}"
        return [
            *(_program(), "--name", "n1", "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            # Our servers die by signals, never by a power cut.
            *("--initial-cluster", f"n1={peer}", "--unsafe-no-fsync"),
            *("--quota-backend-bytes", str(self._quota_bytes)),
            *(self._tls.arguments if self._tls is not None else ()),
        ]

    def _answers(self) -> bool:
        # No proxy: it is on loopback.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._tls is not None:
            context = ssl.create_default_context(cafile=self._tls.ca)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(f"{self.endpoint}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False  # still starting: the caller looks at the process


def _program() -> str:
    program = shutil.which("etcd")
    if program is None:
        raise ServerUnavailableError(
            "etcd is not installed. Run `python -m tests_support.servers install` as root, or "
            "`apt-get install etcd-server`, or what your system has for it."
        )
    return program
