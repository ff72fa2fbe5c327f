"""Shapes of collections, from what is configured and from what the log's newest changes hold."""

import asyncio
from collections.abc import Mapping
from typing import Final

import numpy as np

from penstock.errors import AheadError, TrimmedError
from penstock.event import Kind
from penstock.ports import LogReader
from penstock.serve.captures.graphql.shapes import STREAMS_MAX, Sample, Shape, shape_of
from penstock.wire import Block

_READ_BYTES: Final = 1 << 20
_BYTES_MAX: Final = 64 << 20


async def shapes_of(
    log: LogReader,
    configured: Mapping[str, Mapping[str, str]],
    *,
    entries_max: int,
    collections_max: int,
) -> list[Shape]:
    """The configured shapes, and those inferred of as many other collections as may be: from the
    documents among the log's newest `entries_max` entries, of which at most 64 MiB are read."""
    samples: dict[str, Sample] = {name: Sample() for name in configured}
    if entries_max:
        bounds = await log.bounds()
        after, size = max(bounds.trimmed, bounds.head - entries_max), 0
        while after < bounds.head and size < _BYTES_MAX:
            try:
                blocks = await log.read(after=after, until=bounds.head, bytes_max=_READ_BYTES)
            except (TrimmedError, AheadError):
                break  # what was removed meanwhile tells no shape any more
            for block in blocks:
                _look(block, samples, collections_max)
                after, size = block.last_sequence, size + block.nbytes
            await asyncio.sleep(0)
            if not blocks:
                break
    return [
        shape_of(
            name,
            configured.get(name) or sample.types(),
            configured=bool(configured.get(name)),
            streams=sample.streams,
        )
        for name, sample in samples.items()
    ]


def _look(block: Block, samples: dict[str, Sample], most: int) -> None:
    numbers: list[int] = np.unique(block.stream_numbers()[block.start : block.stop]).tolist()
    for stream in (block.streams[number] for number in numbers):
        name = stream.collection
        if name and (name in samples or len(samples) < most):
            sample = samples.setdefault(name, Sample())
            if len(sample.streams) < STREAMS_MAX:
                sample.streams.add(stream)
    for i in range(block.start, block.stop):
        if block.kind(i) is not Kind.DATA:
            continue
        known = samples.get(block.stream(i).collection)
        document = block.cell(i, "full_document")
        if known is not None and document:
            known.add(document)
