"""The durable, ordered log: in LMDB, and in memory for tests and demonstrations."""

from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog, LmdbLogReader
from penstock.log.memory import MemoryLog

__all__ = ["LmdbLog", "LmdbLogReader", "LogConfig", "MemoryLog"]
