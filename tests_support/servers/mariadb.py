"""A real MariaDB: the system's own (Debian's package mariadb-server), or a later one beside it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Literal

from tests_support.servers.debian import MARIADB
from tests_support.servers.packages import ServerUnavailableError
from tests_support.servers.process import ServerStartError
from tests_support.servers.sql import SqlServer

MariaDbVersion = Literal["system", "11.8"]
"""What the system has, or the one that `debian` installs beside it."""
OPTIONS = ("--gtid-strict-mode=1", "--log-slave-updates=1", "--innodb-log-file-size=16M")

# What mariadb-install-db has a server of its own release run, in its order. The script itself would
# start it by the system's loader.
SYSTEM_TABLES = (
    *("mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data"),
    *("fill_help_tables", "maria_add_gis_sp_bootstrap", "mariadb_sys_schema"),
)


class MariaDbServer(SqlServer):
    """One MariaDB on loopback with a binlog, and a temporary data folder.

    `version` is the system's unless it is one that is installed beside it.

    It keeps its port and its data over kills and restarts; `root` needs no password. `options` are
    added to mariadbd's command line, behind ours, so that they win.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    NAME = "MariaDB"

    def __init__(
        self,
        *,
        version: MariaDbVersion = "system",
        server_id: int = 1,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(server_id=server_id, options=options)
        self.version: MariaDbVersion = version

    def binlog_command(self) -> Sequence[str]:
        if self.version == "11.8":
            return MARIADB.command("usr/bin/mariadb-binlog")
        return (_program("mariadb-binlog"),)

    def _require(self) -> None:
        if self.version == "11.8":
            MARIADB.command(MARIADB.executable)
        else:
            _program("mariadbd")

    def _make(self) -> None:
        if self.version == "11.8":
            self._make_beside()
        else:
            self._make_system()

    def _make_beside(self) -> None:
        for folder in (self.data, self.temporary):
            folder.mkdir()
        share = MARIADB.root / "usr/share/mariadb"
        scripts = [(share / f"{name}.sql").read_text() for name in SYSTEM_TABLES]
        # Without a value, root has no password and may come from an address.
        first = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;"]
        outcome = subprocess.run(
            [
                *(*_beside(), "--bootstrap", "--log-warnings=0", "--enforce-storage-engine="),
                *(f"--datadir={self.data}", f"--tmpdir={self.temporary}"),
            ],
            input="\n".join([*first, *scripts]),
            capture_output=True,
            text=True,
            check=False,
        )
        if outcome.returncode != 0:
            raise ServerStartError(
                f"mariadbd --bootstrap ended with {outcome.returncode}. It said:\n"
                f"{outcome.stdout}{outcome.stderr}"
            )

    def _make_system(self) -> None:
        # The server gives up root, and must still reach its folder.
        self.folder.chmod(0o711)
        for folder in (self.data, self.temporary):
            folder.mkdir()
            if os.geteuid() == 0:
                shutil.chown(folder, "mysql", "mysql")
        outcome = subprocess.run(
            [
                *(_program("mariadb-install-db"), "--no-defaults", *_user()),
                *(f"--datadir={self.data}", f"--tmpdir={self.temporary}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if outcome.returncode != 0:
            raise ServerStartError(
                f"mariadb-install-db ended with {outcome.returncode}. It said:\n"
                f"{outcome.stdout}{outcome.stderr}"
            )

    def _command(self) -> Sequence[str]:
        return (*self._program(), *self._arguments(), *OPTIONS, *self._options)

    def _program(self) -> Sequence[str]:
        if self.version == "11.8":
            return _beside()
        return (*_as_its_user(), _program("mariadbd"), "--no-defaults")


def _beside() -> Sequence[str]:
    """What starts the one that is installed beside the system's."""
    share = MARIADB.root / "usr/share/mariadb"
    return (
        *(*MARIADB.command(MARIADB.executable), "--no-defaults", "--user=root"),
        *(f"--basedir={MARIADB.root / 'usr'}", f"--lc-messages-dir={share}"),
        *(f"--character-sets-dir={share / 'charsets'}",),
        *(f"--plugin-dir={MARIADB.root / 'usr/lib/mysql/plugin'}",),
    )


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
            f"{name} is not installed. Run `python -m tests_support.servers install` as root, "
            f"or `apt-get install mariadb-server`, or what your system has for it."
        )
    return program
