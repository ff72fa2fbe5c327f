"""Durable append: `LmdbLog.append` against plain LMDB puts of the same bytes, in one run.

Both make every batch durable before the next one (fsync on). The log does what plain puts do not:
it encodes events to protobuf with their index, counts and hashes them, and moves a position.
Target: at least half of plain LMDB at batches of 500 events of 1 KB. Processor time is shown too,
because on a busy machine the rates say mostly how long each waited for its turn.
"""

import argparse
import asyncio
import cProfile
import pstats
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb
from rich.console import Console
from rich.table import Table

from bench.events import change
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.wire import encode

BATCHES = (1, 100, 500, 1000)


class Speed(NamedTuple):
    """Events a second on the clock, and microseconds of processor time an event."""

    rate: float
    processor_us: float


class _Watch:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._clock

    def speed(self, events: int) -> Speed:
        processor = time.process_time() - self._processor
        return Speed(events / self.seconds, processor / events * 1e6)


def plain(folder: Path, batch: int, seconds: float, values: list[bytes]) -> Speed:
    """How fast plain puts make durable."""
    with lmdb.open(str(folder), map_size=1 << 36) as env:
        done, watch = 0, _Watch()
        while watch.seconds < seconds:
            with env.begin(write=True) as txn:
                for number in range(done, done + batch):
                    key = number.to_bytes(8, "big")
                    txn.put(key, values[number % len(values)], append=True)
            done += batch
        return watch.speed(done)


def batches(batch: int) -> Iterator[list[Commit]]:
    """The same thousand events over and over, so that making them costs nothing."""
    events = [change(number) for number in range(max(1000, batch))]
    commits = [
        Commit(source="shop", position=str(start), events=tuple(events[start : start + batch]))
        for start in range(0, len(events) - batch + 1, batch)
    ]
    while True:
        for commit in commits:
            yield [commit]


async def appended(folder: Path, batch: int, seconds: float) -> Speed:
    """How fast the log makes durable, one append at a time."""
    async with LmdbLog(LogConfig(path=folder, retention=None, retention_bytes=None)) as log:
        given = batches(batch)
        await log.append(next(given))
        done, watch = 0, _Watch()
        while watch.seconds < seconds:
            await log.append(next(given))
            done += batch
        return watch.speed(done)


def measure(folder: Path, batch: int, seconds: float, values: list[bytes]) -> tuple[Speed, Speed]:
    """Plain and the log, taking turns, each the median of three: the machine may be busy."""
    speeds: tuple[list[Speed], list[Speed]] = ([], [])
    for turn in range(3):
        for kind in (0, 1):
            at = folder / f"{kind}-{batch}-{turn}"
            at.mkdir()
            if kind == 0:
                speeds[0].append(plain(at, batch, seconds, values))
            else:
                speeds[1].append(asyncio.run(appended(at, batch, seconds)))
            shutil.rmtree(at)
    return _middle(speeds[0]), _middle(speeds[1])


def _middle(speeds: list[Speed]) -> Speed:
    rates, costs = zip(*speeds, strict=True)
    return Speed(sorted(rates)[1], sorted(costs)[1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, help="on the disk to measure")
    options.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    options.add_argument("--profile", action="store_true", help="where the time goes at batch 500")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        if chosen.profile:
            profiler = cProfile.Profile()
            profiler.enable()
            speed = asyncio.run(appended(Path(folder) / "profile", 500, 3 * chosen.seconds))
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
            print(f"{speed.rate:,.0f} events/s under the profiler")
            return
        # What a put must carry to hold the same: message and index of each event.
        encoded = encode([change(number) for number in range(1000)])
        values = [
            bytes(encoded.cut(row, row + 1).payload) + encoded.index[row].tobytes()
            for row in range(len(encoded))
        ]
        table = Table("batch", "plain ev/s", "log ev/s", "ratio", title="durable append")
        for name in ("plain us", "log us", "ratio of processor time"):
            table.add_column(name)
        for batch in BATCHES:
            raw, ours = measure(Path(folder), batch, chosen.seconds, values)
            costs = (raw.processor_us, ours.processor_us, raw.processor_us / ours.processor_us)
            table.add_row(
                str(batch),
                *(f"{raw.rate:,.0f}", f"{ours.rate:,.0f}", f"{ours.rate / raw.rate:.2f}"),
                *(f"{cost:.2f}" for cost in costs),
            )
        Console().print(table)


if __name__ == "__main__":
    main()
