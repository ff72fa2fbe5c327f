"""What it costs to leave fields out: a capture rendered for who sees all of it, and for others.

Rendering alone, with bodies, of the mix of matching.py, whose documents have about 1 KB. It is done
once for all who see as much (serve/captures/shared.py), however many they are. Beside it, the peer:
a proxy that decodes what was rendered, removes the fields, and encodes it again, for each reader.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.captures.matching import blocks
from penstock.subscribe.captures import Captured
from penstock.subscribe.captures.rendering import shared_json
from penstock.wire import Mask


def by_proxy(names: frozenset[str]) -> Callable[[Captured], bytes]:
    """Render it whole, and take the fields out of that."""

    def rendered(captured: Captured) -> bytes:
        said = msgspec.json.decode(shared_json(captured))
        body = said.get("body", {})
        described = body.get("updateDescription", {})
        for part in (body.get("fullDocument", {}), described.get("updatedFields", {})):
            for name in names:
                part.pop(name, None)
        return msgspec.json.encode(said)

    return rendered


def masked(mask: Mask | None, captures: list[Captured]) -> list[Captured]:
    return [msgspec.structs.replace(one, mask=mask) for one in captures]


def main() -> None:
    """Print each, a capture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        read = asyncio.run(blocks(Path(folder), arguments.events))
    plain = [
        Captured(ids=("r",), block=block, i=i, body=True, before=False)
        for block in read
        for i in range(block.start, len(block.places))
    ]
    document = msgspec.json.decode(bytes(read[0].cell(read[0].start, "full_document")))
    (first, *_) = [name for name in document if name != "_id"]
    secret = b"x" * 32
    hidden = frozenset({first})
    cases: dict[str, tuple[list[Captured], Callable[[Captured], bytes]]] = {
        "whole": (plain, shared_json),
        "no images before, no statements": (
            masked(Mask(before_images=False, statements=False), plain),
            shared_json,
        ),
        f"without `{first}`": (masked(Mask(hidden=hidden, secret=secret), plain), shared_json),
        "without a field that is not there": (
            masked(Mask(hidden=frozenset({"absent"}), secret=secret), plain),
            shared_json,
        ),
        "without the key": (
            masked(Mask(hidden=frozenset({"_id"}), secret=secret), plain),
            shared_json,
        ),
        "by a proxy (peer)": (plain, by_proxy(hidden)),
    }
    table = Table(title=f"{len(plain):,} captures with bodies")
    for name in ("what", "µs a capture (median)", "of the whole"):
        table.add_column(name)
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.rounds):
        # In turn, so that whatever else the machine does is in all of them.
        for name, (captures, render) in cases.items():
            begun = time.process_time()
            for one in captures:
                render(one)
            found[name].append((time.process_time() - begun) / len(captures) * 1e6)
    whole = statistics.median(found["whole"])
    for name, times in found.items():
        median = statistics.median(times)
        table.add_row(name, f"{median:.2f}", f"{median / whole:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
