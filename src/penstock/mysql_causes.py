"""Why a MySQL or MariaDB is not reached, or refuses us: one cause for each, with where and what to
do. Pure.

By error classes and numbers; never the server's message, which may hold a value.
"""

import ssl
from typing import Final

import pymysql
from msgspec import Struct

from penstock.causes import Cause, Outlook, unreached

LACKS_GRANT: Final = frozenset({1044, 1141, 1142, 1143, 1227, 1370})
"""The user is known, and may not do what was asked."""
_LOGIN: Final = frozenset({1045, 1698})
_HOST: Final = 1130
_NO_DATABASE: Final = 1049
_LOCKED_ACCOUNT: Final = frozenset({3118, 4151})
_EXPIRED: Final = frozenset({1820, 1862})
_NO_PLUGIN: Final = frozenset({1251, 2059, 2061})
_NO_TLS: Final = 2026
_ONLY_TLS: Final = 3159
"""Of MySQL; MariaDB answers as to a wrong password."""
_TO_TRUST: Final = (
    "Set ca to the authority that signed it and host to a name that it has, or set tls to "
    "unverified."
)
_TO_ENCRYPT: Final = "Correct tls, ca, certificate and key, or the server's certificate."
_UNREACHABLE: Final = 2003
_LOST: Final = 2013
_BLOCKED: Final = 1129
_TOO_MANY: Final = frozenset({1040, 1203, 1226})
_PASSING: Final = frozenset(
    {1053, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1205, 1220, 1317, 1927}
)
"""Shutting down, lost connections, killed, a binlog that was purged: another try may do."""


class Login(Struct, frozen=True, kw_only=True):
    """Where a server is, and whom to be there."""

    host: str
    port: int
    user: str
    tls: bool
    """Whether TLS is asked for."""
    seconds: float
    """How long a connection may take."""

    @property
    def where(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


def code_of(error: Exception) -> int:
    """The server's number of an error; 0 without one."""
    number: object = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def cause(error: Exception, login: Login, *, granting: str) -> Cause:
    """Of an error of a connection, or of what was asked on it. `granting` is as in `answered`."""
    if hasattr(error, "original_exception"):
        return unreachable(error, login)
    return answered(error, login, granting=granting)


def unreachable(error: Exception, login: Login) -> Cause:
    """Of an error for which no connection came about."""
    where, code = login.where, code_of(error)
    under: object = getattr(error, "original_exception", None) or error
    if isinstance(under, OSError) and (found := unreached(login.host, login.port, under)):
        if isinstance(under, ssl.SSLError):
            untrusted = isinstance(under, ssl.SSLCertVerificationError)
            return found._replace(remedy=_TO_TRUST if untrusted else _TO_ENCRYPT)
        if code != _LOST:
            return found
    if code in {_UNREACHABLE, _LOST} or isinstance(under, OSError):
        return Cause(
            Outlook.AWAY,
            f"{where} does not answer as a server does, within {login.seconds:g} seconds",
            "See that the server is well, that host and port are its own, and that no firewall or "
            "proxy is in between.",
        )
    if code == 0:
        return Cause(
            Outlook.REFUSED,
            f"what answers at {where} is no MariaDB or MySQL ({type(error).__name__})",
            "Correct host and port.",
        )
    return answered(error, login, granting="")


def answered(error: Exception, login: Login, *, granting: str, account: str = "") -> Cause:
    """Of what a server answers. `granting` is the statement that grants what is needed, and
    `account` who the server takes us for, where known."""
    where, code = login.where, code_of(error)
    name = f"{type(error).__name__} ({code})"
    if code in LACKS_GRANT:
        return Cause(
            Outlook.REFUSED,
            f"{account or login.user} lacks a privilege at {where} ({code})",
            f"As an administrator, run: {granting}",
        )
    refused = _refused(login, code)
    if refused is not None:
        what, remedy = refused
        return Cause(Outlook.REFUSED, f"{what} at {where} ({code})", f"{remedy}.")
    if isinstance(error, ssl.SSLError):  # it was there, and broke: a handshake's is another
        return Cause(
            Outlook.AWAY,
            f"the encrypted connection to {where} is damaged ({error.reason})",
            "See what is between it and this machine if this comes again.",
        )
    if code == _BLOCKED:
        return Cause(
            Outlook.AWAY,
            f"the server at {where} blocks this machine after many failed connections ({code})",
            "As an administrator, run: FLUSH HOSTS, or of MySQL from 8.4 on: TRUNCATE TABLE "
            "performance_schema.host_cache",
        )
    if code in _TOO_MANY:
        return Cause(
            Outlook.AWAY,
            f"the server at {where} has as many connections as it takes, or as {login.user} may "
            f"have ({code})",
            "Raise max_connections or the user's limit if this stays.",
        )
    broken = isinstance(error, OSError | pymysql.err.InterfaceError) or 2000 <= code < 3000
    if broken or code in _PASSING:
        return Cause(
            Outlook.AWAY,
            f"the server at {where} does not answer, or broke off: {name}",
            "See that the server is well, and what is between it and this machine.",
        )
    return Cause(
        Outlook.OTHER,
        f"the server at {where} answered {name}",
        "Look the code up in the server's documentation.",
    )


def _refused(login: Login, code: int) -> tuple[str, str] | None:
    """What a refusal to let us in is about, and the next step; None for another error."""
    user = quoted(login.user)
    if code in _LOGIN:
        tls = "" if login.tls else ", and set tls if it REQUIREs SSL"
        return (
            f"the user name or password of {user} is wrong, or it may not come from this machine,",
            f"Correct user and password; the account must exist for this machine's host{tls}",
        )
    if code == _HOST:
        return (
            "no user may come from this machine",
            f"Create the account for it: CREATE USER {user}@'HOST' IDENTIFIED BY '...'",
        )
    if code == _NO_DATABASE:
        return "there is no database of the name that is configured", "Create it, or correct it"
    if code in _LOCKED_ACCOUNT:
        return (
            f"the account of {user} is locked",
            f"As an administrator, run: ALTER USER {user}@'HOST' ACCOUNT UNLOCK",
        )
    if code in _EXPIRED:
        return (
            f"the password of {user} has expired",
            f"As an administrator, run: ALTER USER {user}@'HOST' IDENTIFIED BY '...'",
        )
    if code in _NO_PLUGIN:
        return (
            f"the account of {user} logs in by a plugin that the client library does not have,",
            "Give it a password of another kind: caching_sha2_password, or mysql_native_password",
        )
    if code == _NO_TLS:
        return (
            "there is no TLS",
            "Switch TLS on at the server (ssl_cert and ssl_key), or set tls to off",
        )
    if code == _ONLY_TLS:
        return (
            "the server takes encrypted connections only",
            "Set tls to verify, with the ca that signed its certificate, or to unverified",
        )
    return None


def quoted(text: str) -> str:
    """A text of SQL."""
    return "'" + text.replace("'", "''") + "'"
