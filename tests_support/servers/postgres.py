"""A real PostgreSQL: the system's own (Debian's package postgresql)."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests_support.servers.packages import ServerUnavailableError
from tests_support.servers.process import POLL_SECONDS, Server, ServerStartError

USER = "postgres"
DEBIAN = Path("/usr/lib/postgresql")
"""Where Debian has the programs, by version, and not on a user's PATH."""

# Small, and nothing that waits for a disk: ours die by signals.
OPTIONS = (
    *("fsync=off", "synchronous_commit=on", "full_page_writes=off", "shared_buffers=32MB"),
    # In its folder: what a killed server has in /dev/shm stays there.
    "dynamic_shared_memory_type=mmap",
    *("wal_level=logical", "max_wal_senders=8", "max_replication_slots=8"),
)


class PostgresServer(Server):
    """One PostgreSQL on loopback, ready for logical replication, with a temporary data folder.

    It keeps its port and its data over kills and restarts; `postgres` needs no password. Texts sort
    by their bytes (locale C). `options` are settings, `name=value`, behind ours, so that they win.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    NAME = "PostgreSQL"
    STOP_SIGNAL = signal.SIGINT  # with SIGTERM it waits for its clients

    def __init__(self, *, options: Sequence[str] = ()) -> None:
        super().__init__()
        self._options = tuple(options)
        self._made: list[str] = []

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """Its port, valid once it is started."""
        return self._ports[0]

    def uri(self, database: str = "postgres") -> str:
        """Where a database of it is."""
        return f"postgres://{USER}@{self.host}:{self.port}/{database}"

    def create(self, database: str) -> str:
        """Make a database; its URI."""
        self.execute(f'CREATE DATABASE "{database}"')
        self._made.append(database)
        return self.uri(database)

    def drop_all(self) -> None:
        """Drop all databases that were made by `create`, whoever is connected."""
        made, self._made = self._made, []
        if made:
            self.execute(*(f'DROP DATABASE IF EXISTS "{one}" WITH (FORCE)' for one in made))

    def execute(self, *statements: str, database: str = "postgres") -> list[list[str]]:
        """Run statements as postgres, each on its own; the rows of all as texts. Raises
        ServerStartError."""
        commands = (part for statement in statements for part in ("--command", statement))
        said = _run(
            [
                *(program("psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"),
                *("--field-separator=\t", "--set=ON_ERROR_STOP=1"),
                *(*commands, self.uri(database)),
            ]
        )
        return [line.split("\t") for line in said.splitlines() if line]

    def kill(self) -> None:
        """Kill it with SIGKILL; its children, which notice, are gone when this returns."""
        children = _children(self.process.pid)
        super().kill()
        # A server that starts while one of them is left says that its memory is still in use.
        while any(Path(f"/proc/{child}").exists() for child in children):
            time.sleep(POLL_SECONDS)

    def _require(self) -> None:
        program("initdb")

    def _prepare(self) -> None:
        # The server refuses to be root, and must still reach its folder.
        self.folder.chmod(0o711)
        data = self.folder / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(data, USER, USER)
        _run(
            [
                *(*_as_its_user(), program("initdb"), f"--pgdata={data}", f"--username={USER}"),
                *("--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ]
        )

    def _command(self) -> Sequence[str]:
        data = self.folder / "data"
        ours = (f"listen_addresses={self.host}", f"unix_socket_directories={data}", *OPTIONS)
        settings = [part for one in (*ours, *self._options) for part in ("-c", one)]
        return [
            *(*_as_its_user(), program("postgres"), "-D", str(data), "-p", str(self.port)),
            *settings,
        ]

    def _answers(self) -> bool:
        outcome = subprocess.run(
            [program("pg_isready"), "--quiet", f"--host={self.host}", f"--port={self.port}"],
            check=False,
        )
        return outcome.returncode == 0


def program(name: str) -> str:
    """One of PostgreSQL's programs. Raises ServerUnavailableError."""
    found = found_program(name)
    if found is None:
        raise ServerUnavailableError(
            f"PostgreSQL's {name} is not installed. Run `python -m tests_support.servers "
            f"install` as root, or `apt-get install postgresql`, or what your system has for it."
        )
    return found


def found_program(name: str) -> str | None:
    """Where one of PostgreSQL's programs is: the newest that Debian has, else the PATH's."""
    versions = [path for path in DEBIAN.glob(f"*/bin/{name}") if path.parts[-3].isdecimal()]
    if versions:
        return str(max(versions, key=lambda path: int(path.parts[-3])))
    return shutil.which(name)


def _as_its_user() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv") or "setpriv"
    return (setpriv, f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--pdeathsig=KILL")


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []  # gone, or a system without /proc


def _run(command: list[str]) -> str:
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if outcome.returncode != 0:
        raise ServerStartError(
            f"{' '.join(map(os.path.basename, command[:8]))} ended with {outcome.returncode}. It "
            f"said:\n{outcome.stdout}{outcome.stderr}"
        )
    return outcome.stdout
