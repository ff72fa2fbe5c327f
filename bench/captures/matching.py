"""Filters alone: what it costs to find for whom an event is.

A mix of five collections of two sources, four operations, documents of about 1 KB. Ten criteria in
ten requests, as clients write them: by collection, by operation, by key, by fields, by catalog, and
some that match nothing. Beside them, the same filters as plain Python over decoded events: what a
home-made tailer does, and the peer.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Raw, structs
from rich.console import Console
from rich.table import Table

from bench.events import change, fill
from penstock.event import ChangeEvent, Operation
from penstock.log import LmdbLog, LogConfig
from penstock.subscribe.captures import parse_request
from penstock.subscribe.captures.matching import Matcher
from penstock.wire import Block

TARGET_US = 2.0
COLLECTIONS = ("orders", "lines", "users", "carts", "views")
OPERATIONS = (Operation.INSERT, Operation.UPDATE, Operation.UPDATE, Operation.DELETE)
CRITERIA: tuple[dict[str, Any], ...] = (
    {"entityType": "orders"},
    {"entityType": ["lines", "carts"], "operation": "insert"},
    {"entityType": "users", "operation": ["delete"]},
    {"entityType": "orders", "entityPrimaryKey": [5, 10, 25, 40, 95]},
    {"entityType": "users", "containerType": "ATTRIBUTE", "containerName": "email"},
    {"catalog": "erp"},
    {"catalog": "shop.shop", "entityType": "views", "operation": "UPSERT"},
    {"entityType": "nothing"},
    {"entityType": "carts", "operation": "truncate"},
    {"catalog": "shop.other"},
)


def mixed(number: int) -> ChangeEvent:
    """Change `number` of the mix."""
    operation = OPERATIONS[number % 4]
    event = change(number, key=number % 1000, operation=operation)
    updated = Raw(b'{"updatedFields":{"%s":1},"removedFields":[]}' % (b"email", b"age")[number % 2])
    return structs.replace(
        event,
        source="shop" if number % 10 else "erp",
        collection=COLLECTIONS[number % 5],
        update_description=updated if operation is Operation.UPDATE else None,
    )


def by_hand(event: ChangeEvent) -> int:
    """The same requests, as if each were an `if` of a tailer."""
    found = 0
    for bit, site in enumerate(CRITERIA):
        types = site.get("entityType")
        if types and event.collection not in ([types] if isinstance(types, str) else types):
            continue
        catalog = site.get("catalog")
        if catalog and catalog not in {event.source, f"{event.source}.{event.database}"}:
            continue
        words = site.get("operation")
        listed = [words] if isinstance(words, str) else words
        kind = "REMOVE" if event.operation == "delete" else "UPSERT"
        if listed and event.operation not in listed and kind not in listed:
            continue
        keys = site.get("entityPrimaryKey")
        if keys and int(event.document_id) not in keys:
            continue
        if "containerName" in site and not _touches(event, site["containerName"]):
            continue
        found |= 1 << bit
    return found


def _touches(event: ChangeEvent, name: str) -> bool:
    described = event.update_description or event.full_document
    return described is not None and f'"{name}"'.encode() in bytes(described)


async def blocks(path: Path, events: int) -> list[Block]:
    """The log, read once."""
    await fill(path, events, make=mixed)
    async with LmdbLog(LogConfig(path=path)) as log:
        found: list[Block] = []
        after = 0
        while read := await log.read(after=after, bytes_max=8 << 20):
            found += read
            after = read[-1].last_sequence
        return found


def main() -> None:
    """Print both, an event."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    asked = [
        parse_request({"criteria": [{"area": "data", "site": site}]}, new_id=lambda: "r")
        for site in CRITERIA
    ]
    matcher = Matcher(asked)
    matched = by_peer = 0
    with tempfile.TemporaryDirectory() as folder:
        read = asyncio.run(blocks(Path(folder), arguments.events))
        ours: list[float] = []
        peer: list[float] = []
        for _ in range(arguments.rounds):
            begun = time.process_time()
            matched = sum(len(matcher.select(block)) for block in read)
            ours.append((time.process_time() - begun) / arguments.events * 1e6)
            begun = time.process_time()
            by_peer = 0
            for block in read:
                for entry in block.entries():
                    event = entry.event
                    assert isinstance(event, ChangeEvent)
                    by_peer += bool(by_hand(event))
            peer.append((time.process_time() - begun) / arguments.events * 1e6)
    assert matched <= by_peer, "a filter let through what it should not"
    table = Table(title=f"{arguments.events:,} events, ten criteria, {matched:,} matched")
    for name in ("what", "µs an event (median)", "of the peer", "target"):
        table.add_column(name)
    median, median_peer = statistics.median(ours), statistics.median(peer)
    met = "met" if median < TARGET_US else "MISSED"
    table.add_row("compiled", f"{median:.2f}", f"{median / median_peer:.2f}", f"< 2: {met}")
    table.add_row("by hand, on decoded events", f"{median_peer:.2f}", "1.00", "")
    Console().print(table)


if __name__ == "__main__":
    main()
