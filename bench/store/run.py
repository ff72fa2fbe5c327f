"""The embedded store: what streams cost a write, how late a push is, how fast GetRecords.

Targets: a table with its stream off costs what it costs in a store without streams (within 2 %);
durable puts take at most 10 % longer with KEYS_ONLY and 25 % with both images; a record is pushed
within 10 ms of its commit (p99). GetRecords through boto3 is measured against moto's server. On a
disk whose flushes take 10 ms, 32 writers get ten times as much done as one.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.store import moto, push, together, writes
from penstock.store.syncing import SyncMode

PARTS = ("off", "writes", "push", "records", "together")
MODES: tuple[SyncMode, ...] = ("full", "none")
_console = Console(width=110)
_OFF = {"off": (0.98, 1.02)}
_DURABLE = {"KEYS_ONLY": (0.0, 1.10), "NEW_AND_OLD_IMAGES": (0.0, 1.25)}


def show_writes(
    folder: Path,
    *,
    sync: SyncMode,
    batch: int,
    rounds: int,
    variants: tuple[str, ...],
    targets: dict[str, tuple[float, float]],
) -> None:
    """Puts by variant."""
    # As much for each block, whatever a commit takes.
    transactions = {("full", 1): 40, ("full", 100): 4, ("none", 1): 400, ("none", 100): 8}
    measured = writes.measure(
        folder,
        sync=sync,
        batch=batch,
        rounds=rounds,
        transactions=transactions[sync, batch],
        variants=variants,
    )
    table = Table(title=f"puts of 1 KB, sync={sync}, {batch} in a transaction, {rounds} rounds")
    for name in (
        "stream",
        "puts/s",
        "p99 ms",
        "time",
        "quartiles",
        "processor",
        "KB/put",
        "target",
    ):
        table.add_column(name, justify="left" if name == "stream" else "right")
    for name, one in measured.items():
        target = targets.get(name)
        table.add_row(
            name,
            *(f"{one.rate:,.0f}", f"{one.p99_ms:.2f}", f"{one.ratio:.3f}"),
            *(f"{one.low:.3f} to {one.high:.3f}", f"{one.processor_ratio:.3f}"),
            f"{one.bytes_put / 1024:.1f}",
            "" if target is None else _verdict(one.ratio, target),
        )
    _console.print(table)


def _verdict(ratio: float, target: tuple[float, float]) -> str:
    low, high = target
    wanted = f"{low:.2f} to {high:.2f}" if low else f"≤ {high:.2f}"
    return f"{wanted}: {'met' if low <= ratio <= high else 'missed'}"


def show_push(folder: Path, *, records: int, rate: float, rounds: int) -> None:
    """How late records are."""
    table = Table(title=f"a record's way at {rate:g} puts/s, {rounds} × {records} records")
    for name in ("sync", "since", "p50 ms", "p99 ms", "p99 of rounds", "target"):
        table.add_column(name)
    found = {sync: list[push.Late]() for sync in MODES}
    for number in range(rounds):
        for sync in MODES:
            at = folder / f"push-{sync}-{number}"
            at.mkdir()
            found[sync].append(push.measure(at, sync=sync, records=records, rate=rate))
    for sync, rounds_ in found.items():
        for since in ("put", "commit"):
            each = [one.from_put if since == "put" else one.from_commit for one in rounds_]
            every = np.concatenate(each)
            p99 = float(np.percentile(every, 99))
            spread = sorted(float(np.percentile(one, 99)) for one in each)
            target = "" if since == "put" else f"< 10: {'met' if p99 < 10 else 'missed'}"
            table.add_row(
                *(sync, since, f"{np.percentile(every, 50):.2f}", f"{p99:.2f}"),
                *(f"{spread[0]:.2f} to {spread[-1]:.2f}", target),
            )
    _console.print(table)


def show_records(folder: Path, *, environment: Path, records: int, rounds: int) -> None:
    """GetRecords, ours and moto's by turns."""
    python = moto.installed(environment)
    with moto.ours(folder / "store") as here, moto.moto(python) as there:
        readers = {"ours": moto.Reader(here, records), "moto": moto.Reader(there, records)}
        rates = {name: list[float]() for name in readers}
        for number in range(rounds + 1):
            for name, reader in readers.items():
                rate = reader.read()
                if number:  # the first warms up
                    rates[name].append(rate)
        for reader in readers.values():
            reader.close()
    table = Table(title=f"GetRecords through boto3, {records} records of 1 KB, {rounds} rounds")
    for name in ("server", "records/s", "spread", "times moto's", "spread of that"):
        table.add_column(name, justify="left" if name == "server" else "right")
    for name, found in rates.items():
        ratios = np.array(found) / np.array(rates["moto"])
        table.add_row(
            *(name, f"{np.median(found):,.0f}", f"{min(found):,.0f} to {max(found):,.0f}"),
            *(f"{np.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"),
        )
    _console.print(table)


def show_together(folder: Path, *, flush_ms: float, rounds: int) -> None:
    """How much more writers get done that share flushes."""
    folder.mkdir()
    measured = together.measure(folder, flush_ms=flush_ms, seconds=2.0, rounds=rounds)
    table = Table(title=f"durable puts of 1 KB, a flush takes {flush_ms:g} ms more")
    for name in ("way", "writers", "puts/s", "times one writer's", "spread of that", "target"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for way, rates in measured.items():
        for writers, found in rates.items():
            ratios = np.array(found) / np.array(rates[1])
            times = float(np.median(ratios))
            wanted = f"≥ 10: {'met' if times >= 10 else 'missed'}" if writers == 32 else ""
            table.add_row(
                *(way, f"{writers}", f"{np.median(found):,.0f}", f"{times:.1f}"),
                *(f"{min(ratios):.1f} to {max(ratios):.1f}", wanted),
            )
    _console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--part", choices=PARTS, action="append", help="what to measure")
    parser.add_argument("--rounds", type=int, default=60, help="of puts, by each variant")
    parser.add_argument("--rate", type=float, default=500.0, help="puts a second, of push")
    parser.add_argument("--records", type=int, default=5000, help="of push and of GetRecords")
    parser.add_argument(
        "--moto", type=Path, default=Path("build/moto"), help="where moto is installed"
    )
    parser.add_argument("--flush-ms", type=float, default=10.0, help="of together")
    chosen = parser.parse_args()
    parts = chosen.part or PARTS
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        if "off" in parts:
            show_writes(
                folder / "off",
                sync="full",
                batch=1,
                rounds=3 * chosen.rounds,
                variants=("never", "off"),
                targets=_OFF,
            )
        for sync in MODES if "writes" in parts else ():
            for batch in (1, 100):
                show_writes(
                    folder / f"{sync}-{batch}",
                    sync=sync,
                    batch=batch,
                    rounds=chosen.rounds,
                    variants=writes.VARIANTS[1:],
                    targets=_DURABLE if sync == "full" else {},
                )
        if "push" in parts:
            show_push(folder, records=chosen.records, rate=chosen.rate, rounds=3)
        if "together" in parts:
            show_together(folder / "together", flush_ms=chosen.flush_ms, rounds=3)
        if "records" in parts:
            show_records(folder, environment=chosen.moto, records=chosen.records, rounds=7)


if __name__ == "__main__":
    main()
