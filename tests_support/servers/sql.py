"""What the SQL servers of the tests have in common: a binlog, clients, and a start on data."""

import atexit
import shutil
import subprocess
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests_support.servers.process import POLL_SECONDS, Server, ServerFolder

if TYPE_CHECKING:
    from pymysql import Connection

USER = "root"
BINLOG = "mysql-bin"
_PURGE_SECONDS_MAX = 60.0

# Small memory, and nothing that waits for a disk: ours die by signals.
COMMON_OPTIONS = (
    *(f"--log-bin={BINLOG}", "--binlog-format=ROW", "--binlog-row-image=FULL"),
    *("--binlog-row-metadata=FULL", "--skip-name-resolve", "--character-set-server=utf8mb4"),
    *("--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"),
    *("--max-allowed-packet=64M", "--performance-schema=OFF", "--innodb-flush-method=nosync"),
)

DATA, TEMPORARY = "data", "tmp"

# What a server begins with is made once in a process, by program, and copied: that takes seconds.
_made: dict[tuple[str, ...], ServerFolder] = {}
_making = threading.Lock()


class SqlServer(Server):
    """One server with a binlog; `root` needs no password.

    `options` are added to its command line, behind ours, so that they win.
    """

    def __init__(self, *, server_id: int = 1, options: Sequence[str] = ()) -> None:
        super().__init__()
        self.server_id = server_id
        self._options = tuple(options)

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """Its port, valid once it is started."""
        return self._ports[0]

    @property
    def data(self) -> Path:
        """Where its files are: tables and binlogs."""
        return self.folder / DATA

    @property
    def temporary(self) -> Path:
        """Where its temporary files are. Servers that start at the same time name theirs alike, and
        each removes what looks like its own."""
        return self.folder / TEMPORARY

    def connect(self, **options: Any) -> "Connection[Any]":
        """A client's connection as root, with autocommit; `options` are PyMySQL's.

        Without TLS unless they ask for it: for each connection PyMySQL would read every certificate
        that the machine trusts, which takes longer than all the rest.
        """
        import pymysql

        tls = any(name.startswith("ssl") for name in options)
        options = {"autocommit": True, "charset": "utf8mb4", "ssl_disabled": not tls, **options}
        return pymysql.connect(host=self.host, port=self.port, user=USER, **options)

    def purge_binlogs(self, *, bytes_max: int = 64 << 20) -> None:
        """Remove all binlogs but a new one, if they take more: nobody may still read them.

        A server keeps one for a moment that its engines may need for a recovery (MariaDB), or that
        it still sends to somebody, until it notices that nobody is there.
        """
        # MariaDB from 11.4 on has an index beside each.
        files = self.data.glob(f"{BINLOG}.[0-9]*")
        if sum(file.stat().st_size for file in files) <= bytes_max:
            return
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
            deadline = time.monotonic() + _PURGE_SECONDS_MAX
            while True:
                cursor.execute("SHOW BINARY LOGS")
                *older, (newest, *_) = cursor.fetchall()
                if not older or time.monotonic() > deadline:
                    return
                cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
                time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Kill it and remove its data; harmless when nothing runs. Nobody reads what it would
        still write."""
        if self._process is not None:
            self._process.kill()
        super().stop()

    @abstractmethod
    def binlog_command(self) -> Sequence[str]:
        """The server's own tool that reads binlogs, as a command that awaits options and files."""

    def _prepare(self) -> None:
        program = tuple(self._program())
        with _making:
            if (made := _made.get(program)) is not None:
                _copy(made.path, self.folder)
                return
            self._make()
            made = ServerFolder()
            atexit.register(made.remove)
            _copy(self.folder, made.path)
            _made[program] = made

    @abstractmethod
    def _program(self) -> Sequence[str]:
        """What starts it, before any option."""

    @abstractmethod
    def _make(self) -> None:
        """Make `data` and `temporary`. Raises ServerStartError."""

    def _arguments(self) -> Sequence[str]:
        """The options that the servers have in common."""
        return (
            *(f"--datadir={self.data}", f"--tmpdir={self.temporary}"),
            *(f"--socket={self.data / 'socket'}", f"--pid-file={self.data / 'pid'}"),
            *(f"--bind-address={self.host}", f"--port={self.port}"),
            *(f"--server-id={self.server_id}", *COMMON_OPTIONS),
        )

    def _answers(self) -> bool:
        """Whether it does, itself: another one may have taken the port since it was chosen, and
        would answer in its place until its own test ends."""
        import pymysql

        try:
            client = self.connect(connect_timeout=1, read_timeout=5)
            with client, client.cursor() as cursor:
                cursor.execute("SELECT @@datadir")
                ((data,),) = cursor.fetchall()
        except pymysql.err.OperationalError:
            return False  # still starting: the caller looks at the process
        return Path(data).resolve() == self.data.resolve()


def _copy(made: Path, folder: Path) -> None:
    """Copy a server's data, its owner, and its holes: most of a new redo log is nothing."""
    shutil.copymode(made, folder)
    parts = [str(made / name) for name in (DATA, TEMPORARY)]
    subprocess.run(["cp", "--archive", "--sparse=always", *parts, str(folder)], check=True)
