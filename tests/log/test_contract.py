"""Both logs keep the one contract, and LMDB the durable one."""

from pathlib import Path

from penstock.clocks import Clock
from penstock.log import LmdbLog, LogConfig, MemoryLog
from penstock.ports import Above
from penstock.testing.contracts import AboveContract, ChangeLogContract, DurableLogContract


class TestLmdbLog(ChangeLogContract, AboveContract, DurableLogContract):
    def open_log(self, folder: Path, *, config: LogConfig, clock: Clock | None) -> LmdbLog:
        return LmdbLog(config, clock=clock)

    def open_above(self, config: LogConfig, *, above: Above) -> LmdbLog:
        return LmdbLog(config, above=above)

    def reopen_log(self, config: LogConfig) -> LmdbLog:
        return LmdbLog(config)


class TestMemoryLog(ChangeLogContract, AboveContract):
    def open_log(self, folder: Path, *, config: LogConfig, clock: Clock | None) -> MemoryLog:
        return MemoryLog(config, clock=clock)

    def open_above(self, config: LogConfig, *, above: Above) -> MemoryLog:
        return MemoryLog(config, above=above)
