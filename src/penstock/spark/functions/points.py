"""The versions of rows, decided a piece at a time by `penstock.spark.history.versions`. Pure.

Points are gathered until there are enough of them. Where that is amid a row, its open version is
what the next piece begins with, as a table's would be; so a row may have any number of versions.
"""

# A document's values may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.spark.functions.lives import Life
from penstock.spark.history.apply import Tracking
from penstock.spark.history.versions import NEVER, OPEN, Places, Points, Versions, decide

_PIECE_BYTES: Final = 8 << 20
_POINT_BYTES: Final = 500


class Name(Struct, frozen=True):
    """What a row is called for a while; its versions are of this name."""

    source: str
    database: str
    collection: str
    key: str
    life: Life
    """Tells it from rows that had the name before and after."""


class Version(Struct, frozen=True, kw_only=True):
    """What a row was, from when to when; see `penstock.spark.history.columns`."""

    name: Name
    operation: str
    since: tuple[int, int]
    """Sequence and Unix milliseconds of the change that opened it."""
    until: tuple[int, int] | None
    """Those of the one that ended it; None while it is open."""
    text: str
    sequence: int
    sure: bool
    rejected: int


class Point(Struct, frozen=True, kw_only=True):
    """Something that is told of a row; the roles are those of `Points`."""

    name: Name
    role: int
    sequence: int
    timestamp: int
    operation: str = ""
    text: str = ""
    """Of PUT and OPEN: the document."""
    sure: bool = False
    mark: int = NEVER
    opened: Version | None = None
    """Of OPEN: the version, as it was before the piece."""


class Pieces:
    """Takes the points of rows, one row after the other and each in order; gives their versions."""

    def __init__(self, tracking: Tracking, *, piece_bytes: int = _PIECE_BYTES) -> None:
        self._tracking = tracking
        self._piece_bytes = piece_bytes
        self._points: list[Point] = []
        self._held = 0

    def add(self, point: Point) -> Iterator[Version]:
        """Take the next point; versions that are known by now."""
        self._points.append(point)
        self._held += len(point.text) + _POINT_BYTES
        if self._held >= self._piece_bytes:
            yield from self.decided(amid=point.name)

    def decided(self, *, amid: Name | None = None) -> Iterator[Version]:
        """The versions of all points there are; but the open one of the row that it is `amid`."""
        points, self._points = self._points, []
        self._held = 0
        for version in _versions(points, self._tracking):
            if version.until is None and version.name == amid:
                self._points.append(_open(version))
            else:
                yield version


def _open(version: Version) -> Point:
    return Point(
        name=version.name,
        role=OPEN,
        sequence=version.sequence,
        timestamp=version.since[1],
        text=version.text,
        sure=version.sure,
        mark=version.rejected,
        opened=version,
    )


def _versions(points: list[Point], tracking: Tracking) -> Iterator[Version]:
    codes: dict[Name, int] = {}
    made = decide(
        Points(
            codes=np.array([codes.setdefault(one.name, len(codes)) for one in points], np.int64),
            sequences=np.array([one.sequence for one in points], np.int64),
            roles=np.array([one.role for one in points], np.int8),
            marks=np.array([one.mark for one in points], np.int64),
        ),
        _Values(points, tracking).differ,
    )
    yield from _built(points, made)
    as_they_were = set(range(len(points))) - set(made.first.tolist())
    yield from (opened for at in as_they_were if (opened := points[at].opened) is not None)


def _built(points: list[Point], made: Versions) -> Iterator[Version]:
    columns = (made.first.tolist(), made.last.tolist(), made.end.tolist(), made.rejected.tolist())
    for at, last_at, end_at, rejected in zip(*columns, strict=True):
        first, last = points[at], points[last_at]
        version = first.opened or Version(
            name=first.name,
            operation=first.operation,
            since=(first.sequence, first.timestamp),
            until=None,
            text="",
            sequence=0,
            sure=False,
            rejected=NEVER,
        )
        end = None if end_at < 0 else points[end_at]
        yield structs.replace(
            version,
            until=None if end is None else (end.sequence, end.timestamp),
            text=last.text,
            sequence=last.sequence,
            sure=last.sure,
            rejected=rejected,
        )


class _Values:
    """The documents of points, and how they differ."""

    def __init__(self, points: list[Point], tracking: Tracking) -> None:
        self._points = points
        self._tracking = tracking
        self._known: dict[int, dict[str, bytes]] = {}

    def differ(self, before: Places, after: Places) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """As `penstock.spark.history.versions.Differ`."""
        tracked, anything = np.zeros(len(before), bool), np.zeros(len(before), bool)
        for pair, (one, other) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            tracked[pair], anything[pair] = self._pair(one, other)
        return tracked, anything

    def _pair(self, one: int, other: int) -> tuple[bool, bool]:
        before, after = self._points[one].sure, self._points[other].sure
        if self._tracking.parts(before, after):
            return True, True
        was, now = self._fields(one), self._fields(other)
        changed = [name for name in was.keys() | now.keys() if was.get(name) != now.get(name)]
        return any(map(self._tracking.tracks, changed)), bool(changed) or before != after

    def _fields(self, at: int) -> dict[str, bytes]:
        """Each field's value as JSON, by which 0.0 is not -0.0; absent and null are the same."""
        if at not in self._known:
            document: dict[str, Any] = msgspec.json.decode(self._points[at].text)
            self._known[at] = {
                name: msgspec.json.encode(value)
                for name, value in document.items()
                if value is not None
            }
        return self._known[at]
