"""A real MariaDB: the program comes from the system (Debian's package mariadb-server)."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.testing.servers.packages import ServerUnavailableError
from penstock.testing.servers.process import (
    ServerFolder,
    ServerProcess,
    ServerStartError,
    free_ports,
)

if TYPE_CHECKING:
    from pymysql import Connection

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
USER = "root"

# What capture needs, a small memory, and nothing that waits for a disk: ours die by signals.
OPTIONS = (
    *("--log-bin=mysql-bin", "--binlog-format=ROW", "--binlog-row-image=FULL"),
    *("--binlog-row-metadata=FULL", "--gtid-strict-mode=1", "--log-slave-updates=1"),
    *("--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"),
    *("--skip-name-resolve", "--character-set-server=utf8mb4", "--max-allowed-packet=64M"),
    "--performance-schema=OFF",
)


class MariaDbServer:
    """One MariaDB on loopback with a binlog, and a temporary data folder.

    It keeps its port and its data over kills and restarts; `root` needs no password. `options` are
    added to mariadbd's command line, behind ours, so that they win.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    def __init__(self, *, server_id: int = 1, options: Sequence[str] = ()) -> None:
        self.server_id = server_id
        self._options = tuple(options)
        self._folder: ServerFolder | None = None
        self._process: ServerProcess | None = None
        self._port = 0

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
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """Its port, valid once it is started."""
        return self._port

    @property
    def process(self) -> ServerProcess:
        """Its process: the pid, and whether it runs."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def data(self) -> Path:
        """Where its files are: tables and binlogs."""
        assert self._folder is not None, "not started"
        return self._folder.path / "data"

    def connect(self, **options: Any) -> "Connection[Any]":
        """A client's connection as root, with autocommit; `options` are PyMySQL's."""
        import pymysql

        options = {"autocommit": True, "charset": "utf8mb4", **options}
        return pymysql.connect(host=self.host, port=self.port, user=USER, **options)

    def start(self) -> None:
        """Make its data folder, start it, and return when it answers.

        Raises ServerUnavailableError when MariaDB is not installed, and ServerStartError with the
        end of its log when it does not come up.
        """
        if self._folder is not None:
            raise RuntimeError("MariaDB is already started")
        _program("mariadbd")
        self._folder = ServerFolder()
        (self._port,) = free_ports(1)
        try:
            self._install()
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
        """Kill it with SIGKILL; its data stays."""
        self.process.kill()

    def restart(self) -> None:
        """Start it again on its own port and data, stopping it first if it runs."""
        self.process.stop()
        self._launch()

    @property
    def _temporary(self) -> Path:
        """Its own: a server removes what others are about to use in a folder that they share."""
        assert self._folder is not None
        return self._folder.path / "tmp"

    def _install(self) -> None:
        assert self._folder is not None
        # The server gives up root, and must still reach its folder.
        self._folder.path.chmod(0o711)
        for folder in (self.data, self._temporary):
            folder.mkdir()
            if os.geteuid() == 0:
                shutil.chown(folder, "mysql", "mysql")
        outcome = subprocess.run(
            [
                *(_program("mariadb-install-db"), "--no-defaults", *_user()),
                *(f"--datadir={self.data}", "--auth-root-authentication-method=normal"),
                "--skip-test-db",
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TMPDIR": str(self._temporary)},
        )
        if outcome.returncode != 0:
            raise ServerStartError(
                f"mariadb-install-db ended with {outcome.returncode}. It said:\n"
                f"{outcome.stdout}{outcome.stderr}"
            )

    def _launch(self) -> None:
        assert self._folder is not None
        self._process = ServerProcess(
            [
                *_as_its_user(),
                *(_program("mariadbd"), "--no-defaults", f"--datadir={self.data}"),
                *(f"--socket={self.data / 'socket'}", f"--pid-file={self.data / 'pid'}"),
                f"--tmpdir={self._temporary}",
                *(f"--bind-address={self.host}", f"--port={self.port}"),
                *(f"--server-id={self.server_id}", *OPTIONS, *self._options),
            ],
            log_path=self._folder.path / "mariadb.log",
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if not self._process.running or time.monotonic() > deadline:
                raise ServerStartError(
                    f"MariaDB did not come up. Its log ends:\n{self._process.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        import pymysql

        try:
            self.connect(connect_timeout=1, read_timeout=5).close()
        except pymysql.err.OperationalError:
            return False  # still starting: the caller looks at the process
        return True


def _as_its_user() -> tuple[str, ...]:
    """What starts it as another user than root, which it refuses to be.

    Left to itself it would change its user later, and the kernel then forgets that it is to die
    with us (prctl(2), PR_SET_PDEATHSIG).
    """
    if os.geteuid() != 0:
        return ()
    setpriv = _program("setpriv")
    return (setpriv, "--reuid=mysql", "--regid=mysql", "--clear-groups", "--pdeathsig=KILL")


def _user() -> tuple[str, ...]:
    return ("--user=mysql",) if os.geteuid() == 0 else ()


def _program(name: str) -> str:
    # Debian keeps servers where a user's PATH does not look.
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise ServerUnavailableError(
            f"{name} is not installed. Run `python -m penstock.testing.servers install` as root, "
            f"or `apt-get install mariadb-server`, or what your system has for it."
        )
    return program
