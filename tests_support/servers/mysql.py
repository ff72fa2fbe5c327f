"""A real MySQL: the program comes from Debian's sid, beside the system (see `debian`)."""

import subprocess
from collections.abc import Sequence

from tests_support.servers.debian import MYSQL
from tests_support.servers.process import ServerStartError
from tests_support.servers.sql import SqlServer

# Its own root may come from `localhost` only, which an address is not without asking for its name.
ACCOUNTS = "CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
OPTIONS = (
    *("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=OFF"),
    "--innodb-redo-log-capacity=16M",
)


class MySqlServer(SqlServer):
    """One MySQL on loopback with a binlog and GTIDs, and a temporary data folder.

    It keeps its port and its data over kills and restarts; `root` needs no password. `options` are
    added to mysqld's command line, behind ours, so that they win.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    NAME = "MySQL"

    def binlog_command(self) -> Sequence[str]:
        return MYSQL.command("usr/bin/mysqlbinlog")

    def _require(self) -> None:
        MYSQL.command(MYSQL.executable)

    def _make(self) -> None:
        self.temporary.mkdir()
        accounts = self.folder / "accounts.sql"
        accounts.write_text(ACCOUNTS)
        outcome = subprocess.run(
            [
                *(*self._program(), "--initialize-insecure"),
                *(f"--datadir={self.data}", f"--tmpdir={self.temporary}"),
                f"--init-file={accounts}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if outcome.returncode != 0:
            raise ServerStartError(
                f"mysqld --initialize-insecure ended with {outcome.returncode}. It said:\n"
                f"{outcome.stdout}{outcome.stderr}"
            )
        # Its identity: each server that begins with these data gives itself one.
        (self.data / "auto.cnf").unlink()

    def _command(self) -> Sequence[str]:
        return (*self._program(), *self._arguments(), *OPTIONS, *self._options)

    def _program(self) -> Sequence[str]:
        share = MYSQL.root / "usr/share/mysql"
        return (
            *(*MYSQL.command(MYSQL.executable), "--no-defaults", "--user=root"),
            *(f"--basedir={MYSQL.root / 'usr'}", f"--lc-messages-dir={share}"),
            *(f"--character-sets-dir={share / 'charsets'}",),
            *(f"--plugin-dir={MYSQL.root / 'usr/lib/mysql/plugin'}", "--secure-file-priv=NULL"),
        )
