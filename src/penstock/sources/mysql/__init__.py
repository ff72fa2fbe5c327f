"""MySQL and MariaDB as sources: the row changes of their binlogs into the log."""

from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.source import MysqlSource

__all__ = ["MysqlSource", "MysqlSourceConfig"]
