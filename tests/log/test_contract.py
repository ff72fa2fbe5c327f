"""Both logs keep the one contract, and LMDB the durable one."""

from pathlib import Path

from penstock.log import LmdbLog, LogConfig, MemoryLog
from penstock.log.retention import Clock
from penstock.testing.contracts import ChangeLogContract, DurableLogContract


class TestLmdbLog(ChangeLogContract, DurableLogContract):
    def open_log(self, folder: Path, *, config: LogConfig, clock: Clock | None) -> LmdbLog:
        return LmdbLog(config, clock=clock)

    def reopen_log(self, config: LogConfig) -> LmdbLog:
        return LmdbLog(config)


class TestMemoryLog(ChangeLogContract):
    def open_log(self, folder: Path, *, config: LogConfig, clock: Clock | None) -> MemoryLog:
        return MemoryLog(config, clock=clock)
