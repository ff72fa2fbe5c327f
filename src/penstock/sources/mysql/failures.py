"""What the client library raises, in our words: one sentence for each cause.

Never the server's message, which may hold a value.
"""

from collections.abc import Sequence
from typing import Final

from penstock.causes import Cause, Outlook
from penstock.errors import ConfigError, PenstockError, SourceError, SourceUnavailableError
from penstock.mysql_causes import Login, answered, quoted
from penstock.mysql_causes import unreachable as not_reached
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.frames import MalformedFrameError

GRANTS: Final = "REPLICATION SLAVE, REPLICATION CLIENT, SELECT"
_ON: Final = "Nothing was skipped; capture tries again by itself, from its durable position."
_STOPPED: Final = "Nothing was skipped."


def unreachable(source: str, config: MysqlSourceConfig, error: Exception) -> PenstockError:
    """Our error where no connection came about."""
    return _told(source, not_reached(error, _login(config)))


def translated(
    source: str, config: MysqlSourceConfig, error: Exception, *, account: str = ""
) -> PenstockError:
    """Our error for what a server answers. `account` is who it takes us for, where known."""
    if isinstance(error, MalformedFrameError):
        return SourceUnavailableError(
            f"{source}: what came of the compressed connection to {config.host}:{config.port} is "
            f"damaged: {error.why}. Nothing of it was taken and nothing was skipped; capture goes "
            f"on from its durable position. If this comes again, look at what is between us and "
            f"the server, or set compression to off."
        )
    granting = grant(account or config.user)
    return _told(source, answered(error, _login(config), granting=granting, account=account))


def _told(source: str, cause: Cause) -> PenstockError:
    if cause.outlook is Outlook.AWAY:
        return SourceUnavailableError(f"{source}: {cause.what}. {_ON} {cause.remedy}")
    if cause.outlook is Outlook.REFUSED:
        return ConfigError(f"{source}: {cause.what}. {_STOPPED} {cause.remedy}")
    return SourceError(
        f"{source}: {cause.what}. Capture has stopped and nothing was skipped. {cause.remedy} "
        f"Then start the source again."
    )


def _login(config: MysqlSourceConfig) -> Login:
    return Login(
        host=config.host,
        port=config.port,
        user=config.user,
        tls=config.tls != "off",
        seconds=config.connect_timeout,
    )


def missing_package(source: str, config: MysqlSourceConfig, error: RuntimeError) -> ConfigError:
    """The error where the client library lacks what a way to log in takes."""
    return ConfigError(
        f"{source}: {quoted(config.user)} cannot log in at {config.host}:{config.port}: {error}. "
        f"{_STOPPED} Install the package, or give the account a password of another kind."
    )


def grant(account: str) -> str:
    """The statement that grants what capture needs."""
    return f"GRANT {GRANTS} ON *.* TO {account}"


def account_of(rows: Sequence[tuple[object, ...]]) -> str:
    """'user'@'host', from the answer to SELECT CURRENT_USER()."""
    user, _, host = str(rows[0][0]).rpartition("@")
    return f"{quoted(user)}@{quoted(host)}"
