"""MongoDB replica sets of real mongod processes."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from tests_support.servers.packages import MONGOD_PACKAGES, installed
from tests_support.servers.process import (
    ServerFolder,
    ServerProcess,
    ServerStartError,
    free_ports,
)

if TYPE_CHECKING:
    from pymongo import MongoClient

MongoVersion = Literal["6.0.5", "6.0.27"]
"""6.0.5 has all but $changeStreamSplitLargeEvent; 6.0.27 has that too."""

REPLICA_SET = "rs0"
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


class MongoReplicaSet:
    """A replica set of `members` mongods on loopback, with a temporary data folder.

    `parameters` are mongod's `--setParameter`s (`{"enableTestCommands": "1"}` allows fail points),
    `extra_args` more of its command line (`("--syncdelay", "1")`). A member is named by its
    index, from 0, which it keeps over kills and restarts, as it keeps its port and its data.

    Stop it, or use it as a context manager; should the process die first, the servers die too.
    """

    def __init__(
        self,
        *,
        members: int = 1,
        version: MongoVersion = "6.0.5",
        oplog_mb: int = 64,
        cache_gb: float = 0.25,
        parameters: Mapping[str, str] = MappingProxyType({}),
        extra_args: Sequence[str] = (),
    ) -> None:
        if not 1 <= members <= 7:
            raise ValueError(f"a replica set has 1 to 7 voting members, not {members}")
        self.version: MongoVersion = version
        self._member_count = members
        self._oplog_mb = oplog_mb
        self._cache_gb = cache_gb
        # A primary would otherwise wait 15 s for a secondary that the test is about to stop too.
        self._parameters = {"shutdownTimeoutMillisForSignaledShutdown": "100", **parameters}
        self._extra_args = tuple(extra_args)
        self._folder: ServerFolder | None = None
        self._ports: list[int] = []
        self._members: list[ServerProcess] = []

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
    def addresses(self) -> list[str]:
        """`host:port` of each member, by its index."""
        return [f"127.0.0.1:{port}" for port in self._ports]

    @property
    def uri(self) -> str:
        """The connection string of the whole set, valid once it is started."""
        return f"mongodb://{','.join(self.addresses)}/?replicaSet={REPLICA_SET}"

    @property
    def members(self) -> Sequence[ServerProcess]:
        """The processes, by member index: their pids, logs and whether they run."""
        return tuple(self._members)

    def start(self) -> None:
        """Start all members and return when a primary takes writes and the others follow it.

        Raises ServerUnavailableError when mongod is not installed, and ServerStartError with
        the end of its log when it does not come up.
        """
        if self._folder is not None:
            raise RuntimeError("the replica set is already started")
        installed(MONGOD_PACKAGES[self.version])
        self._folder = ServerFolder()
        self._ports = free_ports(self._member_count)
        try:
            self._begin()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        self._members = [self._launch(index) for index in range(self._member_count)]
        for index in range(self._member_count):
            self._wait(index, _answers)
        self._initiate()
        for index in range(self._member_count):
            self._wait(index, _follows)
        self.primary_index()

    def stop_all(self) -> None:
        """Stop every member; its data stays."""
        for member in self._members:
            member.terminate()
        for member in self._members:
            member.stop()

    def restart_all(self, data: Path | None = None) -> None:
        """Start every member again, stopping it first, and return when a primary takes writes.

        With `data`, a member's from before, all begin with that.
        """
        self.stop_all()
        for index in range(self._member_count):
            if data is not None:
                shutil.rmtree(self.data(index))
                shutil.copytree(data, self.data(index))
            self._members[index] = self._launch(index)
        for index in range(self._member_count):
            self._wait(index, _follows)
        self.primary_index()

    def replace(self) -> None:
        """Begin anew without any data: as another set, of the same name and addresses."""
        self.stop_all()
        for index in range(self._member_count):
            shutil.rmtree(self.data(index))
        self._begin()

    def stop(self) -> None:
        """Stop every member and remove the data; harmless when nothing runs."""
        self.stop_all()
        self._members = []
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def kill(self, member_index: int) -> None:
        """Kill one member with SIGKILL, as a power cut would; its data stays."""
        self._members[member_index].kill()

    def data(self, member_index: int) -> Path:
        """Where the files of one member are."""
        assert self._folder is not None, "a replica set is started as a whole first"
        return self._folder.path / f"member{member_index}"

    def restart(self, member_index: int) -> None:
        """Start one member again on its own port and data, stopping it first if it runs.

        Returns when it is primary or secondary.
        """
        self._members[member_index].stop()
        self._members[member_index] = self._launch(member_index)
        self._wait(member_index, _follows)

    def primary_index(self, *, timeout_seconds: float = START_SECONDS_MAX) -> int:
        """Return the index of the member that takes writes, waiting for an election if need be.

        Raises TimeoutError when there is none within `timeout_seconds`.
        """
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            for index, member in enumerate(self._members):
                hello = self._hello(index) if member.running else None
                if hello is not None and hello.get("isWritablePrimary"):
                    return index
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"no member became primary within {timeout_seconds:g} s")

    def _launch(self, index: int) -> ServerProcess:
        binary = installed(MONGOD_PACKAGES[self.version])
        data = self.data(index)
        data.mkdir(exist_ok=True)
        command = [
            str(binary.path),
            *self._replication,
            *("--dbpath", str(data)),
            *("--bind_ip", "127.0.0.1", "--port", str(self._ports[index]), "--nounixsocket"),
            *(
                "--wiredTigerCacheSizeGB",
                f"{self._cache_gb:g}",
                "--oplogSize",
                str(self._oplog_mb),
                "--quiet",
            ),
            # A server for tests needs no 300 MB of journal, which is what it prepares.
            *("--wiredTigerEngineConfigString", "log=(file_max=16MB,prealloc=false)"),
        ]
        for name, value in self._parameters.items():
            command += ["--setParameter", f"{name}={value}"]
        return ServerProcess(
            [*command, *self._extra_args],
            log_path=data.with_suffix(".log"),
            environment=binary.environment,
        )

    @property
    def _replication(self) -> tuple[str, ...]:
        return ("--replSet", REPLICA_SET)

    def _initiate(self) -> None:
        config = {
            "_id": REPLICA_SET,
            "members": [{"_id": i, "host": host} for i, host in enumerate(self.addresses)],
            # Ten seconds is right for a network, not for loopback.
            "settings": {"electionTimeoutMillis": 1000},
        }
        with self._connect(0) as client:
            client.admin.command("replSetInitiate", config)

    def _wait(self, index: int, reached: Callable[[Mapping[str, Any]], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        member = self._members[index]
        while time.monotonic() < deadline:
            if not member.running:
                raise ServerStartError(
                    f"mongod {self.version} ended while starting. Its log ends:\n"
                    f"{member.log_tail()}"
                )
            hello = self._hello(index)
            if hello is not None and reached(hello):
                return
            time.sleep(POLL_SECONDS)
        raise ServerStartError(
            f"mongod {self.version} runs but is not ready after {START_SECONDS_MAX:g} s. "
            f"Its log ends:\n{member.log_tail()}"
        )

    def _hello(self, index: int) -> Mapping[str, Any] | None:
        from pymongo.errors import PyMongoError

        try:
            with self._connect(index) as client:
                return client.admin.command("hello")
        except PyMongoError:
            return None  # still starting, or just gone: the caller looks at the process

    def _connect(self, index: int) -> "MongoClient[dict[str, Any]]":
        from pymongo import MongoClient

        return MongoClient(
            "127.0.0.1",
            self._ports[index],
            directConnection=True,
            serverSelectionTimeoutMS=500,
        )


class MongoStandalone(MongoReplicaSet):
    """One mongod that is in no replica set: it has no transactions and no change streams."""

    def __init__(self, *, version: MongoVersion = "6.0.5") -> None:
        super().__init__(version=version)

    @property
    def uri(self) -> str:
        """The connection string, valid once it is started."""
        return f"mongodb://{self.addresses[0]}/?directConnection=true"

    @property
    def _replication(self) -> tuple[str, ...]:
        return ()

    def _initiate(self) -> None:
        """It is nobody's member."""


def _answers(_hello: Mapping[str, Any]) -> bool:
    return True


def _follows(hello: Mapping[str, Any]) -> bool:
    return bool(hello.get("isWritablePrimary") or hello.get("secondary"))
