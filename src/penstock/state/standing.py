"""How far the current rows of each source are. Read by anybody, also with the service down."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from penstock.errors import ProgressError, StateIncompleteError
from penstock.ports import LogReader
from penstock.state.complete import require_complete
from penstock.state.facts import Facts
from penstock.state.tables import find_state, read_applied, read_facts, state_path
from penstock.subscribe import Criteria

COUNTED_BYTES_MAX: Final = 16 << 20
"""So much of the log is read to tell whose entries the rows do not have yet."""


class SourceRows(Struct, frozen=True, kw_only=True, rename="camel"):
    """The current rows of one source."""

    rows: Literal["current", "behind", "copying", "incomplete"]
    """`current`: every row is known, as of the log's end; `behind`: as of before it. Else some are
    missing: `copying`, they are being copied, or `incomplete`, they need a copy."""
    lag_events: int | None
    """Entries of the source that the rows do not have yet; None if there are too many to count."""
    message: str = ""
    """Why they are not complete, and what to do."""


class Standing(Struct, frozen=True, kw_only=True, rename="camel"):
    """The current rows as a whole."""

    sequence: int
    """How much of the log they have; 0 if nothing, or of another log."""
    lag_events: int
    """Entries of the log that they do not have yet."""
    lag_seconds: float
    """Since when the first of those is durable; 0 if there is none."""
    sources: dict[str, SourceRows]


async def standing(log: LogReader, folder: Path, *, now_ms: int) -> Standing | None:
    """How the rows beside the log at `folder` stand to it; None if there are none.

    Raises LogFormatError for rows of another version of Penstock.
    """
    env = find_state(state_path(folder))
    if env is None:
        return None
    with env, env.read() as txn:
        applied, facts = read_applied(txn, env), read_facts(txn, env)
    # After the rows: the log's end is never behind what they have.
    states, bounds = await log.sources(), await log.bounds()
    after = 0
    if applied is not None and applied.log_id == bounds.log_id:
        after = applied.sequence
    missing, since_ms = await _missing(log, after=max(after, bounds.trimmed), until=bounds.head)
    return Standing(
        sequence=after,
        lag_events=bounds.head - after,
        lag_seconds=0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000,
        sources=_of_sources(facts, [state.source for state in states], missing),
    )


async def incomplete_sources(log: LogReader, folder: Path) -> frozenset[str]:
    """The sources of which not all current rows are known; none where nobody keeps rows."""
    env = find_state(state_path(folder))
    if env is None:
        return frozenset()
    with env, env.read() as txn:
        facts = read_facts(txn, env)
    names = [state.source for state in await log.sources()]
    found = _of_sources(facts, names, None)
    return frozenset(name for name, one in found.items() if one.rows in {"copying", "incomplete"})


async def _missing(
    log: LogReader, *, after: int, until: int
) -> tuple[Counter[str] | None, int | None]:
    """How many entries of each source lie in (after, until], and when the first became durable.

    None for what is too much to read, or is removed or replaced meanwhile.
    """
    counted: Counter[str] = Counter()
    size, since_ms = 0, None
    while after < until:
        try:
            blocks = await log.read(after=after, until=until)
        except ProgressError:
            blocks = []
        if not blocks or size > COUNTED_BYTES_MAX:
            return None, since_ms
        for block in blocks:
            since_ms = block.ingested_at if since_ms is None else since_ms
            counted.update(block.stream(i).source for i in range(block.start, block.stop))
            after, size = block.last_sequence, size + block.nbytes
    return counted, since_ms


def _of_sources(
    facts: Facts, names: Iterable[str], missing: Counter[str] | None
) -> dict[str, SourceRows]:
    found: dict[str, SourceRows] = {}
    for name in names:
        lag = None if missing is None else missing[name]
        try:
            require_complete(facts, [name], Criteria(sources=frozenset([name])))
        except StateIncompleteError as error:
            under_way = facts.source(name).copy is not None or any(
                facts.collections[one].snapshot is not None for one in facts.of(name)
            )
            found[name] = SourceRows(
                rows="copying" if under_way else "incomplete", lag_events=lag, message=str(error)
            )
        else:
            found[name] = SourceRows(rows="behind" if lag != 0 else "current", lag_events=lag)
    return found
