"""MariaDB as a source: the row changes of its binlog into the log."""

from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.source import MysqlSource

__all__ = ["MysqlSource", "MysqlSourceConfig"]
