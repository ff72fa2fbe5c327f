"""How long puts take, by what their table records.

One store for each variant, all open at once, each with the same 5,000 items of 1 KB, which the puts
replace. Blocks of puts alternate between the variants, in an order that turns, so that whatever
else the machine does meets all of them alike; ratios are of blocks of one round.
"""

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock import store
from penstock.store import KeyType, Retention, Store, StreamViewType
from penstock.store.syncing import SyncMode

ITEMS = 5000
VARIANTS = ("never", "off", "KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
"""never: a store in which no stream ever was. off: one with streams, but not of this table now."""
_TEXT = "0123456789abcdef" * 56
_RETENTION = Retention(age_seconds=None, records_max=20_000)


class Measured(NamedTuple):
    """A variant's puts."""

    rate: float
    """Puts a second, of the median block."""
    p99_ms: float
    """Of transactions."""
    ratio: float
    """Of the time to the base's, in the median round."""
    low: float
    high: float
    """Quartiles of that ratio over the rounds."""
    processor_ratio: float
    """Of processor time to the base's, over all rounds."""
    bytes_put: float
    """Given to the kernel for each put."""


def measure(
    folder: Path,
    *,
    sync: SyncMode,
    batch: int,
    rounds: int,
    transactions: int,
    variants: Sequence[str] = VARIANTS,
) -> dict[str, Measured]:
    """Each variant's puts, `batch` in a transaction, against those of the first."""
    blocks = {name: list[float]() for name in variants}
    each = {name: list[float]() for name in variants}
    processor, bytes_ = dict.fromkeys(variants, 0.0), dict.fromkeys(variants, 0)
    rng = random.Random(1)
    with ExitStack() as stack:
        stores = {
            name: stack.enter_context(_filled(folder / name, name, sync)) for name in variants
        }
        order = list(variants)
        for number in range(rounds + 1):
            for name in order:
                keys = [[rng.randrange(ITEMS) for _ in range(batch)] for _ in range(transactions)]
                written, used, begun = _written(), time.process_time(), time.perf_counter()
                took = _block(stores[name], keys, number)
                seconds = time.perf_counter() - begun
                if number == 0:
                    continue  # warming up
                blocks[name].append(seconds)
                each[name] += took
                processor[name] += time.process_time() - used
                bytes_[name] += _written() - written
            order.append(order.pop(0))
    base = variants[0]
    puts = transactions * batch
    measured = dict[str, Measured]()
    for name in variants:
        ratios = np.array(blocks[name]) / np.array(blocks[base])
        low, middle, high = np.percentile(ratios, (25, 50, 75))
        measured[name] = Measured(
            rate=puts / float(np.median(blocks[name])),
            p99_ms=float(np.percentile(each[name], 99)) * 1000,
            ratio=float(middle),
            low=float(low),
            high=float(high),
            processor_ratio=processor[name] / processor[base],
            bytes_put=bytes_[name] / (rounds * puts),
        )
    return measured


def _block(db: Store, keys: list[list[int]], number: int) -> list[float]:
    took = list[float]()
    for transaction in keys:
        begun = time.perf_counter()
        if len(transaction) == 1:
            db.put("t", item(transaction[0], number))
        else:
            db.write_batch(puts=[("t", item(key, number)) for key in transaction])
        took.append(time.perf_counter() - begun)
    return took


def item(key: int, number: int) -> dict[str, store.Value]:
    """About 1 KB."""
    return {"id": f"{key:08d}", "n": number, "customer": f"c{key % 97}", "text": _TEXT}


def _filled(path: Path, variant: str, sync: SyncMode) -> Store:
    db = store.open(path, sync=sync, sweep_seconds=None)
    views = {view.value: view for view in StreamViewType}
    both = StreamViewType.NEW_AND_OLD_IMAGES
    for name in ("t",) if variant == "never" else ("t", "other"):
        table = db.create_table(name).partition_key("id", KeyType.STRING)
        if variant != "never":
            table.stream(views.get(variant, both)).retention(_RETENTION)
        table.execute()
        for first in range(0, ITEMS, 500):
            db.write_batch(puts=[(name, item(key, 0)) for key in range(first, first + 500)])
    if variant == "off":
        db.disable_stream("t")
    return db


def _written() -> int:
    """What this process has written so far, in bytes (wchar in proc_pid_io(5))."""
    with open("/proc/self/io", "rb", buffering=0) as file:  # noqa: PTH123 - nothing beside it
        fields = os.read(file.fileno(), 4096).split()
    return int(fields[fields.index(b"wchar:") + 1])
