"""The server at the other end: how to reach it, who it is and what it can."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.monitoring import ServerHeartbeatListener

from penstock.errors import ConfigError, SourceUnavailableError
from penstock.mongo_causes import granting
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.positions import Server

Client = AsyncMongoClient[dict[str, Any]]


class Deployment(Struct, frozen=True, kw_only=True):
    """What a session needs to know of the server."""

    server: Server
    version: tuple[int, ...]
    replicated: bool
    """False for a standalone server, which has no change streams, and for mongos."""
    sharded: bool
    """Whether mongos answers."""
    shard: bool = False
    """Whether it is a member of a sharded cluster's shard."""

    @property
    def has_images(self) -> bool:
        """Pre- and post-images, and events for DDL: since 6.0."""
        return self.version >= (6, 0)

    @property
    def states_paths(self) -> bool:
        """Whether an update says what its paths mean (`disambiguatedPaths`): since 6.1."""
        return self.version >= (6, 1)

    @property
    def splits_large_events(self) -> bool:
        """$changeStreamSplitLargeEvent: since 6.0.9 and 7.0."""
        return self.version >= (6, 0, 9)


def connect(
    source: str,
    config: MongoSourceConfig,
    listeners: Sequence[ServerHeartbeatListener] = (),
    *,
    known: Sequence[str] = (),
) -> Client:
    """A client; it connects at its first use, and belongs to the event loop of that use. `known`
    are members of the set, besides those that the configuration names, each as host:port.

    Raises ConfigError for a connection string that is none, and SourceUnavailableError for files
    of TLS that cannot be used now: they are renewed.
    """
    try:
        return AsyncMongoClient(
            [config.uri.get_secret_value(), *known],
            appname="penstock",
            event_listeners=listeners,
            serverSelectionTimeoutMS=int(config.deadline_seconds * 1000),
            connectTimeoutMS=int(config.deadline_seconds * 1000),
        )
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        # The driver says of a certificate that it is a wrong setting, and hides why.
        of_file = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        if isinstance(of_file, OSError):  # as ssl.SSLError is
            why = getattr(of_file, "reason", None) or of_file.strerror or type(of_file).__name__
            raise SourceUnavailableError(
                f"{source}: a file of TLS that uri names cannot be used ({why}). Nothing was "
                f"skipped; capture tries again by itself, with the files as they are then. "
                f"Correct tlsCAFile or tlsCertificateKeyFile."
            ) from None
        # Without its cause: the driver's message quotes the string, and that holds a password.
        raise ConfigError(
            f"{source}: the connection string is not usable ({type(error).__name__}). Nothing was "
            f"started. Correct `uri`; a special character in the password is written as %XX."
        ) from None


def members_of(client: Client) -> list[str]:
    """The members of a replica set that a client has heard of, each as host:port."""
    seen = client.topology_description
    if not seen.topology_type_name.startswith("ReplicaSet"):
        return []
    return sorted(f"{host}:{port}" for host, port in seen.server_descriptions() if port)


async def describe(client: Client) -> Deployment:
    """Ask the server who it is."""
    hello = await client.admin.command("hello")
    build = await client.admin.command("buildInfo")
    sharded = hello.get("msg") == "isdbgrid"
    name = "sharded cluster" if sharded else hello.get("setName", "standalone server")
    return Deployment(
        server=Server(name, None if sharded else await _replica_set_id(client)),
        version=tuple(build["versionArray"][:3]),
        replicated="setName" in hello,
        sharded=sharded,
        # What a member of a shard says behind each reply, whoever asks.
        shard="$gleStats" in hello and not sharded,
    )


def obstacle(deployment: Deployment) -> tuple[str, str] | None:
    """Why a deployment cannot be captured, and what to do; None if it can."""
    if deployment.sharded:
        return (
            "this is mongos, and sharded clusters are not supported yet: no test has run on one",
            "capture a replica set that is not a part of a sharded cluster",
        )
    if deployment.shard:
        return (
            "this is a shard of a sharded cluster: what moves between shards has no change events",
            "capture a replica set that is not a part of a sharded cluster",
        )
    if not deployment.replicated:
        return (
            "this MongoDB is a standalone server, which has no change streams",
            "make it a replica set of one: start mongod with --replSet and run rs.initiate()",
        )
    return None


async def _replica_set_id(client: Client) -> str | None:
    """The id that the set was initiated with; None without the right to replSetGetConfig."""
    try:
        reply = await client.admin.command("replSetGetConfig")
    except OperationFailure:
        return None
    found = reply["config"].get("settings", {}).get("replicaSetId")
    return None if found is None else str(found)


def grant_command(config: MongoSourceConfig) -> str:
    """The mongosh commands that give the user of `uri` what capture needs and no more; without a
    user in it, they create one."""
    read = ("readAnyDatabase", "admin") if config.database is None else ("read", config.database)
    admin = 'db.getSiblingDB("admin")'
    role = (
        f'{admin}.getRole("penstockCapture") || '
        f'{admin}.createRole({{role: "penstockCapture", privileges: ['
        '{resource: {cluster: true}, actions: ["replSetGetConfig"]}, '
        '{resource: {db: "local", collection: "oplog.rs"}, actions: ["find"]}], roles: []}); '
    )
    return role + granting(config.address, [read, ("penstockCapture", "admin")])
