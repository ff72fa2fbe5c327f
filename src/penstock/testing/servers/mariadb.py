"""A real MariaDB: the program comes from the system (Debian's package mariadb-server)."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from penstock.testing.servers.packages import ServerUnavailableError
from penstock.testing.servers.process import ServerStartError
from penstock.testing.servers.sql import SqlServer

OPTIONS = ("--gtid-strict-mode=1", "--log-slave-updates=1")


class MariaDbServer(SqlServer):
    """One MariaDB on loopback with a binlog, and a temporary data folder.

    It keeps its port and its data over kills and restarts; `root` needs no password. `options` are
    added to mariadbd's command line, behind ours, so that they win.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    NAME = "MariaDB"

    def binlog_command(self) -> Sequence[str]:
        return (_program("mariadb-binlog"),)

    def _require(self) -> None:
        _program("mariadbd")

    def _prepare(self) -> None:
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
        program = (*_as_its_user(), _program("mariadbd"), "--no-defaults")
        return (*program, *self._arguments(), *OPTIONS, *self._options)


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
