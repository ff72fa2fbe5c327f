"""What the client library raises, in our words: one sentence for each cause.

Never the server's message, which may hold a value.
"""

import socket
import ssl
from collections.abc import Sequence
from typing import Final

import pymysql

from penstock.errors import ConfigError, PenstockError, SourceError, SourceUnavailableError
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.frames import MalformedFrameError

GRANTS: Final = "REPLICATION SLAVE, REPLICATION CLIENT, SELECT"
LACKS_GRANT: Final = frozenset({1044, 1141, 1142, 1143, 1227, 1370})
"""The user is known, and may not do what was asked."""
_LOGIN: Final = frozenset({1045, 1698})
_HOST: Final = 1130
_LOCKED_ACCOUNT: Final = frozenset({3118, 4151})
_EXPIRED: Final = frozenset({1820, 1862})
_NO_PLUGIN: Final = frozenset({1251, 2059, 2061})
_NO_TLS: Final = 2026
_UNREACHABLE: Final = 2003
_BLOCKED: Final = 1129
_TOO_MANY: Final = frozenset({1040, 1203, 1226})
_PASSING: Final = frozenset(
    {1053, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1205, 1220, 1317, 1927}
)
"""Shutting down, lost connections, killed, a binlog that was purged: another try may do."""
_ON: Final = "Nothing was skipped; capture tries again by itself, from its durable position."
_STOPPED: Final = "Nothing was skipped."


def code_of(error: Exception) -> int:
    """The server's number of an error; 0 without one."""
    number: object = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def unreachable(source: str, config: MysqlSourceConfig, error: Exception) -> PenstockError:
    """Our error where no connection came about."""
    where, code = f"{config.host}:{config.port}", code_of(error)
    under: object = getattr(error, "original_exception", None) or error
    if isinstance(under, ssl.SSLError):
        return _no_tls(source, where, under)
    if isinstance(under, socket.gaierror):
        return SourceUnavailableError(
            f"{source}: the host name {config.host} is not known ({under.strerror}). {_ON} Correct "
            f"host, or the name service of this machine."
        )
    if isinstance(under, ConnectionRefusedError):
        return SourceUnavailableError(
            f"{source}: nothing listens at {where} (connection refused). {_ON} Start the server, "
            f"or correct host and port."
        )
    if code == _UNREACHABLE and isinstance(under, OSError) and not isinstance(under, TimeoutError):
        return SourceUnavailableError(
            f"{source}: {where} cannot be reached ({under.strerror or type(under).__name__}). "
            f"{_ON} Correct host and port, or the network between."
        )
    if code in {_UNREACHABLE, 2013} or isinstance(under, OSError):
        return SourceUnavailableError(
            f"{source}: {where} does not answer as a server does, within {config.connect_timeout:g}"
            f" seconds. {_ON} See that the server is well, that host and port are its own, and "
            f"that no firewall or proxy is in between."
        )
    if code == 0:
        return ConfigError(
            f"{source}: what answers at {where} is no MariaDB or MySQL "
            f"({type(error).__name__}). {_STOPPED} Correct host and port."
        )
    return translated(source, config, error)


def translated(
    source: str, config: MysqlSourceConfig, error: Exception, *, account: str = ""
) -> PenstockError:
    """Our error for what a server answers. `account` is who it takes us for, where known."""
    where, code = f"{config.host}:{config.port}", code_of(error)
    name = f"{type(error).__name__} ({code})"
    if isinstance(error, MalformedFrameError):
        return SourceUnavailableError(
            f"{source}: what came of the compressed connection to {where} is damaged: {error.why}. "
            f"Nothing of it was taken and nothing was skipped; capture goes on from its durable "
            f"position. If this comes again, look at what is between us and the server, or set "
            f"compression to off."
        )
    if code in LACKS_GRANT:
        return ConfigError(
            f"{source}: {account or config.user} lacks a privilege at {where} ({code}). {_STOPPED} "
            f"As an administrator, run: {grant(account or config.user)}"
        )
    refused = _refused(config, code)
    if refused is not None:
        what, remedy = refused
        return ConfigError(f"{source}: {what} at {where} ({code}). {_STOPPED} {remedy}.")
    if isinstance(error, ssl.SSLError):
        return _no_tls(source, where, error)
    if code == _BLOCKED:
        return SourceUnavailableError(
            f"{source}: the server at {where} blocks this machine after many failed connections "
            f"({code}). {_ON} As an administrator, run: FLUSH HOSTS, or of MySQL "
            f"from 8.4 on: TRUNCATE TABLE performance_schema.host_cache"
        )
    if code in _TOO_MANY:
        return SourceUnavailableError(
            f"{source}: the server at {where} has as many connections as it takes, or as "
            f"{config.user} may have ({code}). {_ON} Raise max_connections or the user's limit if "
            f"this stays."
        )
    broken = isinstance(error, OSError | pymysql.err.InterfaceError) or 2000 <= code < 3000
    if broken or code in _PASSING:
        return SourceUnavailableError(
            f"{source}: the server at {where} does not answer, or broke off: {name}. {_ON}"
        )
    return SourceError(
        f"{source}: the server at {where} answered {name}. Capture has stopped and nothing was "
        f"skipped. Look the code up in the server's documentation, then start the source again."
    )


def _refused(config: MysqlSourceConfig, code: int) -> tuple[str, str] | None:
    """What a refusal to let us in is about, and the next step; None for another error."""
    user = quoted(config.user)
    if code in _LOGIN:
        tls = ", and set tls if it REQUIREs SSL" if config.tls == "off" else ""
        return (
            f"the user name or password of {user} is wrong, or it may not come from this machine,",
            f"Correct user and password; the account must exist for this machine's host{tls}",
        )
    if code == _HOST:
        return (
            "no user may come from this machine",
            f"Create the account for it: CREATE USER {user}@'HOST' IDENTIFIED BY '...'",
        )
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
    return None


def missing_package(source: str, config: MysqlSourceConfig, error: RuntimeError) -> ConfigError:
    """The error where the client library lacks what a way to log in takes."""
    return ConfigError(
        f"{source}: {quoted(config.user)} cannot log in at {config.host}:{config.port}: {error}. "
        f"{_STOPPED} Install the package, or give the account a password of another kind."
    )


def _no_tls(source: str, where: str, error: ssl.SSLError) -> ConfigError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigError(
            f"{source}: the certificate of {where} is not trusted ({error.verify_message}). "
            f"{_STOPPED} Set ca to the authority that signed it and host to a name that it has, "
            f"or set tls to unverified."
        )
    return ConfigError(
        f"{source}: no TLS with the server at {where} ({error.reason}). {_STOPPED} Correct tls, "
        f"ca, certificate and key, or the server's certificate."
    )


def grant(account: str) -> str:
    """The statement that grants what capture needs."""
    return f"GRANT {GRANTS} ON *.* TO {account}"


def quoted(text: str) -> str:
    """A text of SQL."""
    return "'" + text.replace("'", "''") + "'"


def account_of(rows: Sequence[tuple[object, ...]]) -> str:
    """'user'@'host', from the answer to SELECT CURRENT_USER()."""
    user, _, host = str(rows[0][0]).rpartition("@")
    return f"{quoted(user)}@{quoted(host)}"
