"""A real etcd of one member: the program comes from the system (Debian's package etcd-server)."""

import shutil
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.testing.servers.packages import ServerUnavailableError
from penstock.testing.servers.process import (
    ServerFolder,
    ServerProcess,
    ServerStartError,
    free_ports,
)

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


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


class EtcdServer:
    """One etcd on loopback, with a temporary data folder; it keeps its port over restarts.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    def __init__(self, *, tls: EtcdTls | None = None) -> None:
        self._tls = tls
        self._folder: ServerFolder | None = None
        self._ports: list[int] = []
        self._process: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """Its URL, valid once it is started."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._ports[0]}"

    @property
    def process(self) -> ServerProcess:
        """Its process: the pid, and whether it runs."""
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> None:
        """Start it, and return when it answers.

        Raises ServerUnavailableError when etcd is not installed, and ServerStartError with the end
        of its log when it does not come up.
        """
        if self._folder is not None:
            raise RuntimeError("etcd is already started")
        _program()
        self._folder = ServerFolder()
        self._ports = free_ports(2)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it and remove its data; harmless when nothing runs."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would; its data stays."""
        self.process.kill()

    def restart(self) -> None:
        """Start it again on its own port and data, stopping it first if it runs."""
        self.process.stop()
        self._launch()

    def _launch(self) -> None:
        assert self._folder is not None
        client, peer = self.endpoint, f"http://127.0.0.1:{self._ports[1]}"
        self._process = ServerProcess(
            [
                *(_program(), "--name", "n1", "--data-dir", str(self._folder.path / "data")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                # Our servers die by signals, never by a power cut.
                *("--initial-cluster", f"n1={peer}", "--unsafe-no-fsync"),
                *(self._tls.arguments if self._tls is not None else ()),
            ],
            log_path=self._folder.path / "etcd.log",
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._healthy():
            if not self._process.running or time.monotonic() > deadline:
                raise ServerStartError(
                    f"etcd did not come up. Its log ends:\n{self._process.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def _healthy(self) -> bool:
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
            "etcd is not installed. Run `python -m penstock.testing.servers install` as root, or "
            "`apt-get install etcd-server`, or what your system has for it."
        )
    return program
