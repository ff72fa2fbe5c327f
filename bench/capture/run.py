"""Capture: events a second from the simulated shop through the pump into a durable log.

In one run, on the same transactions: telling them (the source alone), encoding what was told (what
no capture can do without), plain LMDB puts of the same bytes, and the whole way. Target: 100,000
events a second on two cores. Telling and encoding are given as processor time, which a busy machine
distorts least; what they leave of capture's is the pump, the log, LMDB and the kernel.
"""

import argparse
import asyncio
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import lmdb
from rich.console import Console
from rich.table import Table

from penstock.capture import PumpLimits, pump
from penstock.cli.capture_process import relax_collector
from penstock.log import LmdbLog, LogConfig
from penstock.sources.script import ScriptSource, ScriptSourceConfig, Shop
from penstock.wire import encode

_AT_ONCE = 450
"""Transactions of this shop that have about as many events as the log encodes at once."""


def shop(note_bytes: int) -> Shop:
    starts_at = datetime(2026, 1, 1, tzinfo=UTC)
    return Shop(source="shop", database="shop", seed=1, starts_at=starts_at, note_bytes=note_bytes)


def tell(transactions: int, note_bytes: int) -> tuple[int, float]:
    """Events told, and seconds of processor time to tell them."""
    told, events = shop(note_bytes), 0
    started = time.process_time()
    for n in range(1, transactions + 1):
        events += len(told.transaction(n).events)
    return events, time.process_time() - started


def encode_all(transactions: int, note_bytes: int) -> tuple[float, list[bytes]]:
    """Seconds of processor time to encode, as many at once as the log does; and all messages."""
    told, seconds = shop(note_bytes), 0.0
    messages: list[bytes] = []
    for start in range(1, transactions + 1, _AT_ONCE):
        last = min(start + _AT_ONCE, transactions + 1)
        events = [event for n in range(start, last) for event in told.transaction(n).events]
        started = time.process_time()
        encoded = encode(events)
        seconds += time.process_time() - started
        rows = range(len(encoded))
        messages.extend(bytes(encoded.cut(row, row + 1).payload) for row in rows)
    return seconds, messages


def put(messages: list[bytes], batch: int) -> float:
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=1 << 36) as env:
        started = time.perf_counter()
        for start in range(0, len(messages), batch):
            with env.begin(write=True) as txn:
                for number, message in enumerate(messages[start : start + batch], start=start):
                    txn.put(number.to_bytes(8, "big"), message, append=True)
        return time.perf_counter() - started


async def capture(transactions: int, note_bytes: int, batch: int) -> tuple[float, float]:
    """Seconds on the clock and seconds of processor time for the whole way."""
    config = ScriptSourceConfig(
        transactions=transactions, events_per_second=0, note_bytes=note_bytes
    )
    with tempfile.TemporaryDirectory() as folder:
        async with LmdbLog(LogConfig(path=Path(folder) / "log")) as log:
            clock, cpu = time.perf_counter(), time.process_time()
            limits = PumpLimits(batch_events_max=batch)
            await pump(ScriptSource("shop", config), log, limits=limits)
            return time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--note-bytes", type=int, default=0, help="filler in every document")
    parser.add_argument("--batch", type=int, default=PumpLimits().batch_events_max)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many")
    options = parser.parse_args()
    relax_collector()  # as the capture process does
    size, notes = options.transactions, options.note_bytes
    events, telling = min(
        (tell(size, notes) for _ in range(options.rounds)), key=lambda pair: pair[1]
    )
    encoding, messages = min(
        (encode_all(size, notes) for _ in range(options.rounds)), key=lambda pair: pair[0]
    )
    putting = min(put(messages, options.batch) for _ in range(options.rounds))
    whole, cpu = min(
        asyncio.run(capture(size, notes, options.batch)) for _ in range(options.rounds)
    )
    table = Table("step", "events/s", "us/event", title=f"{events:,} events, {size:,} commits")
    for step, seconds in (
        ("tell (source alone), processor time", telling),
        ("encode alone, processor time", encoding),
        ("plain LMDB puts", putting),
        ("capture, durable", whole),
        ("capture, processor time", cpu),
    ):
        table.add_row(step, f"{events / seconds:,.0f}", f"{seconds / events * 1e6:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"average event {sum(map(len, messages)) / events:.0f} bytes; of the processor time of "
        f"capture, {telling / cpu:.2f} is telling and {encoding / cpu:.2f} encoding; capture is "
        f"{putting / whole:.2f} of plain puts; target 100,000 events/s: "
        f"{'met' if events / whole >= 100_000 else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
