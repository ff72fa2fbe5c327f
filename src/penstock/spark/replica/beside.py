"""The rows that a replica must have, in a file of this machine, beside the replica itself.

A log is applied to it as to a server, by the same decisions (`SqlBeside`, `MongoBeside`); then the
rows that the server has are judged by it, one slice after another. Nothing of a table is held in
memory, and nothing is left behind: the file is one of a folder that goes with the comparison.

A row is its key and what it holds, both as bytes that are equal exactly where the rows are.
"""

# Of a statement only the number of its values is put together; none is in the text.
# ruff: noqa: S608

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec
from msgspec import Struct

from penstock.errors import PipelineError

SAME: Final = "same"
APART: Final = "apart"
"""Its last change is in the rejects: it is not judged."""
MISSING: Final = "missing"
EXTRA: Final = "extra"
DIFFERENT: Final = "different"

_Judgement = tuple[bytes, str, str, int | None, tuple[str, ...]]

_SLICE: Final = 1000
_ASKED: Final = 500
_TABLES: Final = (
    "PRAGMA journal_mode = OFF",  # of a file that nobody opens again
    "PRAGMA synchronous = OFF",
    "CREATE TABLE wanted (name, own, said, sequence, held)",
    "CREATE UNIQUE INDEX wanted_own ON wanted (name, own)",
    "CREATE TABLE judged (name, own, what, said, sequence, columns)",
    "CREATE UNIQUE INDEX judged_own ON judged (name, own)",
)


class Wanted(Struct, frozen=True):
    """A row that must be there."""

    own: bytes
    """Its key."""
    said: str
    """Its key, as Extended JSON."""
    sequence: int
    """Of its last change."""
    held: bytes


class Found(Struct, frozen=True):
    """A row that is there."""

    own: bytes
    held: bytes


class Saying(Protocol):
    """What bytes mean."""

    def differing(self, wanted: bytes, found: bytes) -> tuple[str, ...]:
        """The names of what two rows differ in, in order."""
        ...

    def said(self, name: str, own: bytes) -> str:
        """The key of a row of a table, as Extended JSON."""
        ...


class Judged(Struct, frozen=True):
    """A row that is not as it should be."""

    own: bytes
    what: str
    said: str
    sequence: int | None
    columns: tuple[str, ...]


class Counted(Struct, frozen=True):
    """How many rows there are."""

    wanted: int
    found: int
    differing: int


@contextmanager
def rows_in(folder: str, *, pipeline: str) -> "Generator[Rows]":
    """A file of rows, in a folder. Raises PipelineError where the folder has no room for it."""
    try:
        with closing(Rows(folder)) as rows:
            yield rows
    except sqlite3.Error as error:
        raise unkept(pipeline, error) from error


def unkept(pipeline: str, error: Exception) -> PipelineError:
    """What an error of the file says."""
    return PipelineError(
        f"pipeline {pipeline}: the rows that its replica must have cannot be kept in the folder "
        f"for temporary files ({error}). Rows that were repaired before are right, and nothing "
        f"else was changed. Give it room, or another folder by TMPDIR, then compare again."
    )


class Rows:
    """Those of all tables of one pipeline. One thread uses it. Raises sqlite3.Error."""

    def __init__(self, folder: str) -> None:
        self._file = sqlite3.connect(Path(folder) / "rows", isolation_level=None)
        for statement in _TABLES:
            self._file.execute(statement)

    def close(self) -> None:
        self._file.close()

    # --- what must be there -----------------------------------------------------------------------

    def put(self, name: str, rows: Iterable[Wanted]) -> None:
        """Have these rows, in the place of those with the same keys."""
        self._file.execute("BEGIN")
        self._file.executemany(
            "INSERT OR REPLACE INTO wanted VALUES (?, ?, ?, ?, ?)",
            ((name, one.own, one.said, one.sequence, one.held) for one in rows),
        )
        self._file.execute("COMMIT")

    def delete(self, name: str, keys: Iterable[bytes]) -> None:
        self._file.execute("BEGIN")
        self._file.executemany(
            "DELETE FROM wanted WHERE name = ? AND own = ?", ((name, own) for own in keys)
        )
        self._file.execute("COMMIT")

    def empty(self, name: str) -> None:
        self._file.execute("DELETE FROM wanted WHERE name = ?", (name,))

    def move(self, old: str, new: str) -> None:
        """The rows of one table are those of another, which has none."""
        self._file.execute("UPDATE wanted SET name = ? WHERE name = ?", (new, old))

    def get(self, name: str, own: bytes) -> bytes | None:
        """What the row with this key holds; None if there is none."""
        held: tuple[bytes] | None = self._file.execute(
            "SELECT held FROM wanted WHERE name = ? AND own = ?", (name, own)
        ).fetchone()
        return None if held is None else held[0]

    def names(self) -> set[str]:
        """The tables that have rows."""
        return {name for (name,) in self._file.execute("SELECT DISTINCT name FROM wanted")}

    # --- what is there ----------------------------------------------------------------------------

    def begin_judging(self, name: str, apart: Iterable[bytes]) -> None:
        """Judge a table anew, but for these of its rows."""
        self._file.execute("DELETE FROM judged WHERE name = ?", (name,))
        self._judge(name, ((own, APART, "", None, ()) for own in apart))

    def judge(self, name: str, rows: Sequence[Found], saying: Saying) -> None:
        """Say of rows that are there what they are."""
        for start in range(0, len(rows), _ASKED):
            part = rows[start : start + _ASKED]
            owns = [one.own for one in part]
            some = f"name = ? AND own IN ({', '.join('?' * len(owns))})"
            apart = self._file.execute(
                f"SELECT own FROM judged WHERE {some} AND what = ?", (name, *owns, APART)
            )
            unjudged = {own for (own,) in apart}
            wanted = self._file.execute(
                f"SELECT own, said, sequence, held FROM wanted WHERE {some}", (name, *owns)
            )
            known = {own: told for own, *told in wanted}
            self._judge(
                name,
                [
                    _judgement(name, row, known.get(row.own), saying)
                    for row in part
                    if row.own not in unjudged
                ],
            )

    def _judge(self, name: str, rows: Iterable[_Judgement]) -> None:
        listed = [
            (name, own, what, said, sequence, msgspec.json.encode(columns).decode())
            for own, what, said, sequence, columns in rows
        ]
        self._file.execute("BEGIN")
        self._file.executemany("INSERT OR REPLACE INTO judged VALUES (?, ?, ?, ?, ?, ?)", listed)
        self._file.execute("COMMIT")

    def end_judging(self, name: str) -> Counted:
        """Of the rows that are there each was judged: the others are missing."""
        self._file.execute(
            "INSERT INTO judged SELECT name, own, ?, said, sequence, '[]' FROM wanted w "
            "WHERE name = ? AND NOT EXISTS "
            "(SELECT 1 FROM judged j WHERE j.name = w.name AND j.own = w.own)",
            (MISSING, name),
        )
        found: Mapping[str, int] = dict(
            self._file.execute(
                "SELECT what, count(*) FROM judged WHERE name = ? GROUP BY what", (name,)
            ).fetchall()
        )
        counted = {what: found.get(what, 0) for what in (SAME, DIFFERENT, EXTRA, MISSING)}
        return Counted(
            wanted=counted[SAME] + counted[DIFFERENT] + counted[MISSING],
            found=counted[SAME] + counted[DIFFERENT] + counted[EXTRA],
            differing=counted[DIFFERENT] + counted[EXTRA] + counted[MISSING],
        )

    def differing(self, name: str, *, limit: int = -1) -> Iterator[Judged]:
        """The rows that are not as they should be, by their keys' text."""
        return self._differing(name, (MISSING, EXTRA, DIFFERENT), limit)

    def _differing(self, name: str, whats: Sequence[str], limit: int = -1) -> Iterator[Judged]:
        cursor = self._file.execute(
            f"SELECT own, what, said, sequence, columns FROM judged WHERE name = ? "
            f"AND what IN ({', '.join('?' * len(whats))}) ORDER BY said, own LIMIT ?",
            (name, *whats, limit),
        )
        for own, what, said, sequence, columns in cursor:
            names = msgspec.json.decode(columns, type=tuple[str, ...])
            yield Judged(own, what, said, sequence, names)

    def ranges_differing(self, name: str, ranges: int) -> int:
        """In how many of so many ranges of the keys' hash a row differs."""
        return len({crc32(one.own) % ranges for one in self.differing(name)})

    def repairs(self, name: str) -> Iterator[list[tuple[Judged, bytes | None]]]:
        """The rows that differ, a thousand at a time, each with what it must hold, if it stays.

        Those that go come first: what has their place may be the same key to the server, as 1 is
        to MongoDB, whatever its type.
        """
        held: list[tuple[Judged, bytes | None]] = []
        for one in chain(
            self._differing(name, [EXTRA]), self._differing(name, [MISSING, DIFFERENT])
        ):
            held.append((one, self.get(name, one.own)))
            if len(held) >= _SLICE:
                yield held
                held = []
        if held:
            yield held


def _judgement(name: str, row: Found, wanted: Sequence[Any] | None, saying: Saying) -> _Judgement:
    """What a row is; `wanted`: what is said of it, its sequence, and what it must hold."""
    if wanted is None:
        return (row.own, EXTRA, saying.said(name, row.own), None, ())
    said, sequence, held = wanted
    if held == row.held:
        return (row.own, SAME, "", None, ())
    return (row.own, DIFFERENT, said, sequence, saying.differing(held, row.held))
