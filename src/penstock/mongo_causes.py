"""Why a MongoDB is not reached, or refuses us: one cause for each, with where and what to do. Pure.

By error classes and codes, and of a connection that does not come about by the driver's own text,
of which nothing is repeated but the system's error. No password is in any sentence.
"""

import re
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct
from pymongo.errors import ConfigurationError, OperationFailure
from pymongo.server_description import ServerDescription

WRONG_LOGIN: Final = frozenset({11, 18, 8000})
"""UserNotFound, AuthenticationFailed, AtlasError."""
UNAUTHORIZED: Final = 13

_SYSTEM: Final = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)")
_CERTIFICATE: Final = re.compile(r"certificate verify failed: ([A-Za-z ,'-]+)")
_CLOSED: Final = re.compile("connection (closed|lost|reset)", re.IGNORECASE)
_OTHER_SET: Final = re.compile("replica set named .* belongs to a set named '(.*)'")
_TOO_OLD: Final = re.compile(r"reports wire version .* at least \d+ \((MongoDB [\d.]+)\)")
_TOO_NEW: Final = "requires wire version"
_PACKAGES: Final = {"pymongo-auth-aws": "pymongo[aws]", '"kerberos" module': "pymongo[gssapi]"}
"""What the driver says is missing, and what to install."""
_EXTERNAL: Final = frozenset({"MONGODB-X509", "MONGODB-AWS", "GSSAPI", "MONGODB-OIDC"})


class Address(Struct, frozen=True, kw_only=True):
    """What a connection string says, without its password."""

    hosts: str
    user: str | None
    database: str
    """The one that the user was created in."""

    @classmethod
    def of(cls, uri: str) -> "Address":
        """Of a connection string that the driver takes."""
        rest = uri.partition("://")[2]
        authority = re.split(r"[/?]", rest, maxsplit=1)[0]
        login, _, hosts = authority.rpartition("@")
        parts = urlsplit(f"//hosts{rest[len(authority) :]}")
        options = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
        external = options.get("authmechanism", "").upper() in _EXTERNAL
        return cls(
            hosts=hosts,
            user=unquote(login.partition(":")[0]) or None,
            database=options.get("authsource")
            or ("$external" if external else parts.path.strip("/") or "admin"),
        )


def code_name(error: OperationFailure) -> str:
    """`ChangeStreamHistoryLost (286)`; never the message, which may hold a key."""
    name = (error.details or {}).get("codeName", "")
    return f"{name or 'error'} ({error.code})"


def wrong_login(error: OperationFailure, address: Address) -> tuple[str, str]:
    """What happened and the next step, where a user name or password is wrong."""
    what = (
        f"MongoDB at {address.hosts} rejects the user name or password of {address.user!r}, who is "
        f"looked for in the database {address.database!r}: {code_name(error)}"
    )
    remedy = (
        "Correct uri: the user, the password (a special character is written as %XX), and "
        "authSource, the database in which the user was created"
    )
    return what, remedy


def refused(error: ConfigurationError, address: Address) -> tuple[str, str] | None:
    """Why the driver does not work with a server, or not as uri says, and the next step; None where
    it looked for hosts by a name (mongodb+srv), or says something else."""
    text = str(error)
    if old := _TOO_OLD.search(text):
        what = f"MongoDB at {address.hosts} is too old for the driver, which needs {old[1]}"
        return what, "Upgrade the server"
    if _TOO_NEW in text:
        what = f"MongoDB at {address.hosts} is too new for the driver"
        return what, "Upgrade pymongo where Penstock runs"
    for missing, package in _PACKAGES.items():
        if missing in text:
            what = f"authMechanism in uri needs the package {package}, which is not installed"
            return what, f"Install {package} where Penstock runs"
    return None


def not_reached(client: Any, address: Address) -> tuple[str, str]:
    """What is in the way of each host, and the next steps. `client` is the driver's."""
    topology = client.topology_description
    members: list[ServerDescription] = list(topology.server_descriptions().values())
    if not members:
        remedy = (
            "Correct replicaSet in uri: db.hello().setName says the name in mongosh. A server "
            "without one is no replica set: start mongod with --replSet and run rs.initiate()"
        )
        what = f"no MongoDB at {address.hosts} is a member of the replica set that uri names"
        return what, remedy
    causes = [_cause(member) for member in members]
    told = zip(members, causes, strict=True)
    whats = "; ".join(f"{_where(member)} {what}" for member, (what, _) in told)
    return f"MongoDB is not reached: {whats}", "; ".join(dict.fromkeys(step for _, step in causes))


def _where(member: ServerDescription) -> str:
    host, port = member.address
    return f"{host}:{port}" if port is not None else host


def _cause(member: ServerDescription) -> tuple[str, str]:
    text = "" if member.error is None else str(member.error)
    system = found[1].strip() if (found := _SYSTEM.search(text)) else ""
    if not text:
        if member.server_type_name == "RSGhost":
            return "is in no replica set yet", "Run rs.initiate() there"
        return "is not the primary", "See rs.status(): without a primary nothing is captured"
    if other := _OTHER_SET.search(text):
        of = "no replica set" if other[1] == "None" else f"the replica set {other[1]!r}"
        return f"is in {of}, and not in the one that uri names", "Correct replicaSet in uri"
    if trust := _CERTIFICATE.search(text):
        return (
            f"has a certificate that is not trusted ({trust[1].strip()})",
            "Correct tlsCAFile in uri, or the server's certificate",
        )
    if "SSL handshake failed" in text:
        return "does not speak TLS as we do", "Correct tls in uri, or the server's TLS settings"
    if "Connect call failed" in text or "Connection refused" in text:
        return (
            "refuses connections: nothing listens there",
            "Start the server, or correct host and port in uri",
        )
    if "timed out" in text or "timeout" in text.lower().partition("(configured")[0]:
        return (
            "does not answer in time",
            "Correct host and port in uri, or what is in between (a firewall, a proxy)",
        )
    if "[Errno -" in text:
        return (
            f"is a host name that is not known ({system})",
            "Correct the host in uri, or the name service of this machine",
        )
    if _CLOSED.search(text):
        return (
            "closes the connection at once",
            "Set tls=true in uri if the server requires TLS, and see that it is a MongoDB",
        )
    if "Message length" in text or type(member.error).__name__ == "ProtocolError":
        return "is no MongoDB", "Correct host and port in uri"
    return (
        f"cannot be reached ({system or type(member.error).__name__})",
        "Correct host and port in uri, or the network between",
    )
