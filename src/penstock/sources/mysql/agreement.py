"""Whether rows that others read agree with the changes that are told: by settings and places."""

import re
from typing import Final

from penstock.errors import ConfigError
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import Connected, ask, binlog_end
from penstock.sources.mysql.file_places import FilePlace
from penstock.sources.mysql.gtid_sets import GtidSet
from penstock.sources.mysql.positions import Flavour, MysqlPosition, told

_THREAD: Final = re.compile(r"#\d+")
"""Who owns a GTID, in the server's list of those that are being committed."""


def require_whole_rows(source: str, config: MysqlSourceConfig) -> None:
    """Refuse a source whose updates may say less than the row: rows that are read beside the
    stream are only right if each change of a row says all of it, or that it is gone.

    Raises ConfigError.
    """
    if config.on_partial_rows == "decode":
        raise ConfigError(
            f"{source}: its updates need not say the whole row (on_partial_rows = 'decode'), so "
            f"rows cannot be read beside the stream. Nothing was read. Set on_partial_rows = "
            f"'halt' and have all sessions write with binlog_row_image = FULL, or have the service "
            f"copy the rows through the log: penstock snapshot {source}."
        )


def require_agreement(source: str, config: MysqlSourceConfig, known: MysqlPosition) -> None:
    """Refuse to read what the log is not captured from: what counts is what the service captures,
    as its position says. Raises ConfigError."""
    require_whole_rows(source, config)
    if known.scope != config.scope:
        raise ConfigError(
            f"{source}: the service captures other tables or columns than this configuration "
            f"says, so rows might be read whose changes nobody tells, or otherwise. Nothing was "
            f"read. Use the service's configuration (include, exclude, columns), and let it start "
            f"with it first."
        )


def has_told(position: MysqlPosition, read_at: str) -> bool:
    """Whether a source that stands at `position` has told all that was committed up to a read."""
    ours, read = position.told(), told(position.flavour, read_at)
    if isinstance(ours, FilePlace):
        assert isinstance(read, FilePlace)
        return not ours.is_before(read)
    return ours.purged(read_at) is None


def seen(connection: Connected, flavour: Flavour) -> str:
    """As a position says it. What is seen is in the binlog; of MySQL, it is executed, or somebody
    still commits it, and goes from the one list to the other in this order."""
    if flavour == "mariadb":
        ((text,),) = ask(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
        return str(text)
    if flavour == "mysql":
        ((owned, executed),) = ask(connection, "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed")
        return GtidSet.parse(f"{_THREAD.sub('', str(owned))},{executed}").text()
    file, offset = binlog_end(connection)
    return f"{file}:{offset}"
