"""A real zero-cache, Rocicorp Zero's server, of a custom change source; from npm (see `npm`)."""

import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests_support.leftovers import kill_marked
from tests_support.servers.npm import ZERO
from tests_support.servers.process import POLL_SECONDS, Server, ServerStartError

EXIT_SECONDS_MAX = 60.0
RESET_EXIT_CODE = 14
"""It was told to begin anew, and does when it is started again."""


class ZeroCache(Server):
    """One zero-cache on loopback that follows the change source at `upstream`.

    `database` is a database of PostgreSQL for its own state, empty and its alone. It keeps its
    ports, its replica and that database over kills and restarts. `start` returns when it serves,
    which is after its initial sync. It ends by itself when its upstream tells it to begin anew
    (`RESET_EXIT_CODE`), and when an initial sync breaks off (255): somebody must start it again.

    Stop it, or use it as a context manager; should the process die first, the server dies too.
    """

    NAME = "zero-cache"
    PORTS = 3
    PORTS_IN_A_ROW = True

    def __init__(
        self,
        *,
        upstream: str,
        database: str,
        app_id: str = "zero",
        shard: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is added to its own, and wins."""
        super().__init__()
        self.upstream = upstream
        self._database = database
        self._app_id = app_id
        self._shard = shard
        self._added = dict(environment or {})
        self.waits = True
        """Whether `start` and `restart` return when it serves, or at once."""

    @property
    def url(self) -> str:
        """Where its clients connect."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def replica(self) -> Path:
        """Its SQLite, which only Zero's own SQLite can read (WAL2)."""
        return self.folder / "replica.db"

    def stop(self) -> None:
        """Stop it and remove its data; harmless when nothing runs."""
        self._end()
        super().stop()

    def kill(self) -> None:
        """Kill it and its workers with SIGKILL, as a power cut would; its data stays."""
        super().kill()
        self._kill_all()

    def restart(self) -> None:
        """Start it again on its own ports and data, stopping it first if it runs."""
        self._end()
        self._launch()

    def exit_code(self) -> int:
        """What it ended with, once it does. Raises ServerStartError when it goes on."""
        deadline = time.monotonic() + EXIT_SECONDS_MAX
        while (code := self.process.exit_code) is None:
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"{self.NAME} goes on. Its log ends:\n{self.process.log_tail()}"
                )
            time.sleep(POLL_SECONDS)
        return code

    def _require(self) -> None:
        ZERO.program()

    def _prepare(self) -> None:
        """It makes its data itself."""

    def _command(self) -> Sequence[str]:
        return [str(ZERO.program()), str(ZERO.modules / "@rocicorp/zero/out/zero/src/cli.js")]

    def _environment(self) -> Mapping[str, str]:
        return {
            # With `development` it asks for no password of an administrator.
            "NODE_ENV": "development",
            "DO_NOT_TRACK": "1",
            "ZERO_ENABLE_TELEMETRY": "false",
            "ZERO_UPSTREAM_TYPE": "custom",
            "ZERO_UPSTREAM_DB": self.upstream,
            "ZERO_CVR_DB": self._database,
            "ZERO_CHANGE_DB": self._database,
            "ZERO_CVR_MAX_CONNS": "5",
            "ZERO_CHANGE_MAX_CONNS": "5",
            "ZERO_REPLICA_FILE": str(self.replica),
            "ZERO_APP_ID": self._app_id,
            "ZERO_SHARD_NUM": str(self._shard),
            "ZERO_PORT": str(self._ports[0]),
            "ZERO_NUM_SYNC_WORKERS": "1",
            "ZERO_ADMIN_PASSWORD": "penstock",
            "ZERO_LOG_LEVEL": "info",
            **self._added,
        }

    def _answers(self) -> bool:
        if not self.waits:
            return True
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/keepalive", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False  # still starting: the caller looks at the process

    def _end(self) -> None:
        """Stop it, and what it left behind: its workers have its ports."""
        if self._process is not None:
            self._process.stop(how=self.STOP_SIGNAL)
            self._kill_all()

    def _kill_all(self) -> None:
        """It is several processes, each in a session of its own, and all have its replica in their
        environment. Returns when they are gone."""
        kill_marked("ZERO_REPLICA_FILE", str(self.replica))
