"""Why a MongoDB is not reached, or refuses us: one cause for each, with where and what to do. Pure.

By error classes and codes, and of a connection that does not come about by the driver's own text,
of which nothing is repeated but the system's error. No password is in any sentence.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WTimeoutError,
)
from pymongo.server_description import ServerDescription
from pymongo.topology_description import TopologyDescription

WRONG_LOGIN: Final = frozenset({11, 18, 8000})
"""UserNotFound, AuthenticationFailed, AtlasError."""
UNAUTHORIZED: Final = 13

_SYSTEM: Final = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)")
_CERTIFICATE: Final = re.compile(r"certificate verify failed: ([A-Za-z ,'-]+)")
_OTHER_NAME: Final = ("Hostname mismatch", "IP address mismatch")
_CLOSED: Final = re.compile(
    r"connection (is already )?(closed|lost|reset)|broken pipe", re.IGNORECASE
)
_OTHER_SET: Final = re.compile("replica set named .* belongs to a set named '(.*)'")
_TOO_OLD: Final = re.compile(r"reports wire version .* at least \d+ \((MongoDB [\d.]+)\)")
_TOO_NEW: Final = "requires wire version"
_PACKAGES: Final = {"pymongo-auth-aws": "pymongo[aws]", '"kerberos" module': "pymongo[gssapi]"}
"""What the driver says is missing, and what to install."""
_FILES: Final = ("tlscafile", "tlscertificatekeyfile")
_EXTERNAL: Final = frozenset({"MONGODB-X509", "MONGODB-AWS", "GSSAPI", "MONGODB-OIDC"})


class Address(Struct, frozen=True, kw_only=True):
    """What a connection string says, without its password."""

    hosts: str
    user: str | None
    database: str
    """The one that the user was created in."""
    srv: bool = False
    """Whether a name service is asked for the hosts (mongodb+srv)."""
    ca: str = "tlsCAFile in uri"
    """Where an operator says what authority to trust,"""
    tls: str = "tls in uri"
    """and whether to speak TLS."""
    files: tuple[str, ...] = ()
    """Of authorities, and of our certificate."""

    @classmethod
    def of(cls, uri: str, **said: str) -> "Address":
        """Of a connection string that the driver takes; `said` is as the fields `ca` and `tls`."""
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
            srv=uri.lower().startswith("mongodb+srv"),
            files=tuple(options[name] for name in _FILES if name in options),
            **said,
        )


def code_name(error: OperationFailure) -> str:
    """`ChangeStreamHistoryLost (286)`; never the message, which may hold a key."""
    details: dict[str, Any] = dict(error.details or {})
    code = error.code
    if isinstance(error, BulkWriteError):
        wrong: list[dict[str, Any]] = details.get("writeErrors") or [{}]
        details, code = {}, wrong[0].get("code")
    return f"{details.get('codeName') or 'error'} ({code})"


def cause(
    error: PyMongoError, seen: TopologyDescription | None, address: Address, *, granting: str
) -> tuple[str, str]:
    """What happened, and the next step as a sentence; never what a server or the driver wrote.

    `seen` is what the client that raised it knew of its servers (of which a closed one knows
    nothing), and `granting` what gives the user what it needs.
    """
    what, remedy = _happened(error, seen, address)
    if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED:
        return what, f"As an administrator, run in mongosh: {granting}"
    return what, f"{remedy}."


def _happened(
    error: PyMongoError, seen: TopologyDescription | None, address: Address
) -> tuple[str, str]:
    if isinstance(error, ServerSelectionTimeoutError) and seen is not None:
        return not_reached(seen, address)
    where = f"MongoDB at {address.hosts}"
    if isinstance(error, ConnectionFailure | ExecutionTimeout | WTimeoutError):
        return (
            f"{where} does not answer, or broke off ({type(error).__name__})",
            "See that the server is well, and what is between it and this machine",
        )
    if isinstance(error, ConfigurationError):
        return refused(error, address)
    if not isinstance(error, OperationFailure):
        return f"the MongoDB driver failed at {where} ({type(error).__name__})", "Try again"
    if error.code in WRONG_LOGIN:
        return wrong_login(error, address)
    if error.code == UNAUTHORIZED:
        return f"{lacks(address)} ({code_name(error)})", ""
    return f"{where} answered {code_name(error)}", "Look the code up in the server's log"


def lacks(address: Address) -> str:
    """That who we are may not do what was asked."""
    if address.user is None and address.database == "admin":
        return f"MongoDB at {address.hosts} asks for a user, and uri has none"
    who = "the user of uri" if address.user is None else repr(address.user)
    return f"{who} lacks a privilege at {address.hosts}"


def granting(address: Address, roles: Iterable[tuple[str, str]]) -> str:
    """The mongosh command that gives the user of `uri` roles, each of a database; without a user
    in it, it creates one."""
    wanted = ", ".join(f'{{role: "{role}", db: {json.dumps(of)}}}' for role, of in roles)
    if address.user is None:
        return (
            'db.getSiblingDB("admin").createUser({user: "penstock", pwd: passwordPrompt(), '
            f"roles: [{wanted}]}})"
        )
    where = f"db.getSiblingDB({json.dumps(address.database)})"
    return f"{where}.grantRolesToUser({json.dumps(address.user)}, [{wanted}])"


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


def is_unresolved(error: ConfigurationError, address: Address) -> bool:
    """Whether the name service has no hosts for uri (mongodb+srv): it may have them later."""
    return address.srv and _unfit(error, address) is None


def refused(error: ConfigurationError, address: Address) -> tuple[str, str]:
    """Why the driver does not work with a server, or not as uri says, and the next step."""
    if (known := _unfit(error, address)) is not None:
        return known
    if address.srv:
        asked = f"{address.hosts}, which uri asks it for (mongodb+srv)"
        return (
            f"the name service knows no hosts for {asked}",
            "Correct the host in uri, or the name service of this machine",
        )
    return (
        f"the MongoDB driver refuses what uri says of {address.hosts}",
        "Correct the options in uri; the driver's own words may quote a password",
    )


def _unfit(error: ConfigurationError, address: Address) -> tuple[str, str] | None:
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


def not_reached(seen: TopologyDescription, address: Address) -> tuple[str, str]:
    """What is in the way of each host, and the next steps."""
    members = list(seen.server_descriptions().values())
    if not members:
        remedy = (
            "Correct replicaSet in uri: db.hello().setName says the name in mongosh. A server "
            "without one is no replica set: start mongod with --replSet and run rs.initiate()"
        )
        what = f"no MongoDB at {address.hosts} is a member of the replica set that uri names"
        return what, remedy
    causes = [_cause(member, address) for member in members]
    told = zip(members, causes, strict=True)
    whats = "; ".join(f"{_where(member)} {what}" for member, (what, _) in told)
    return f"MongoDB is not reached: {whats}", "; ".join(dict.fromkeys(step for _, step in causes))


def is_untrusted(seen: TopologyDescription) -> bool:
    """Whether every member is known, and none asked since its certificate is not trusted."""
    members = list(seen.server_descriptions().values())
    return bool(members) and all(_CERTIFICATE.search(str(one.error)) for one in members)


def _where(member: ServerDescription) -> str:
    host, port = member.address
    return f"{host}:{port}" if port is not None else host


def _cause(member: ServerDescription, address: Address) -> tuple[str, str]:
    text = "" if member.error is None else str(member.error)
    system = found[1].strip() if (found := _SYSTEM.search(text)) else ""
    silent = (
        "does not answer in time",
        "Correct host and port in uri, or what is in between (a firewall, a proxy)",
    )
    if not text:
        if member.server_type_name == "Unknown":
            return silent
        if member.server_type_name == "RSGhost":
            return "is in no replica set yet", "Run rs.initiate() there"
        return "is not the primary", "See rs.status(): without a primary nothing is captured"
    if other := _OTHER_SET.search(text):
        of = "no replica set" if other[1] == "None" else f"the replica set {other[1]!r}"
        return f"is in {of}, and not in the one that uri names", "Correct replicaSet in uri"
    if trust := _CERTIFICATE.search(text):
        if trust[1].startswith(_OTHER_NAME):
            return (
                f"has a certificate that is for another name ({trust[1].strip()})",
                "Correct the host in uri to a name that the certificate has, or the certificate",
            )
        return (
            f"has a certificate that is not trusted ({trust[1].strip()})",
            f"Correct {address.ca}, or the server's certificate",
        )
    if "SSL handshake failed" in text:
        return "does not speak TLS as we do", f"Correct {address.tls}, or the server's TLS settings"
    if "Connect call failed" in text or "Connection refused" in text:
        return (
            "refuses connections: nothing listens there",
            "Start the server, or correct host and port in uri",
        )
    if "timed out" in text or "timeout" in text.lower().partition("(configured")[0]:
        return silent
    if "[Errno -" in text:
        return (
            f"is a host name that is not known ({system})",
            "Correct the host in uri, or the name service of this machine",
        )
    if _CLOSED.search(text):
        return (
            "closes the connection at once",
            f"Correct {address.tls} if the server requires TLS, and see that it is a MongoDB",
        )
    if "Message length" in text or type(member.error).__name__ == "ProtocolError":
        return "is no MongoDB", "Correct host and port in uri"
    return (
        f"cannot be reached ({system or type(member.error).__name__})",
        "Correct host and port in uri, or the network between",
    )
