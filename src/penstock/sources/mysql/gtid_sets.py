"""Sets of MySQL's GTIDs: which transactions we have, and which of a server's we lack. Pure.

`uuid:1-5:7-9,uuid:tag:1-3`: for each server that gave the numbers, and each tag (8.3 and later),
intervals. Transactions of one set may be committed, and so logged, in another order than their
numbers', as replicas do that apply several at once: so only the whole set says what we have.
Sources: the MySQL manual, "GTID Format and Storage", "GTID Sets"; the MySQL source documentation,
COM_BINLOG_DUMP_GTID, and Gtid_set::encode for the form with tags.
"""

import re
import struct
from bisect import bisect_right
from typing import Final
from uuid import UUID

_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_NUMBERS: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_NUMBER_MAX: Final = (1 << 63) - 2
_TAGGED: Final = 1
"""The format of an encoded set that has tags."""

Source = tuple[str, str]
"""Who gave a number: the UUID of a server, in lower case, and a tag, or no text."""


class GtidSet:
    """A set of transactions, which grows."""

    def __init__(self) -> None:
        self._intervals: dict[Source, list[list[int]]] = {}
        """First and last, in order; between two that follow one another something is missing."""
        self._texts: dict[Source, str] = {}

    @classmethod
    def parse(cls, text: str) -> "GtidSet":
        """The set that a server wrote. Raises ValueError for what is none."""
        found = cls()
        for part in text.split(","):
            if not part.strip():
                continue
            uuid, *rest = (one.strip() for one in part.split(":"))
            source: Source = (str(UUID(uuid)), "")
            if not rest:
                raise ValueError(f"{part!r} has no numbers")
            for one in rest:
                numbers = _NUMBERS.fullmatch(one)
                if numbers is not None:
                    first = int(numbers[1])
                    found._add(source, first, int(numbers[2] or first))
                elif _TAG.fullmatch(one.lower()):
                    source = (source[0], one.lower())
                else:
                    raise ValueError(f"{one!r} is neither a tag nor numbers")
        return found

    def add(self, name: str) -> None:
        """Take the transaction `uuid:7` or `uuid:tag:7` in. Raises ValueError."""
        who, _, number = name.rpartition(":")
        uuid, _, tag = who.partition(":")
        self._add((uuid, tag), int(number), int(number))

    def _add(self, source: Source, first: int, last: int) -> None:
        if not 0 < first <= last <= _NUMBER_MAX:
            raise ValueError(f"{first}-{last} are no numbers of transactions")
        self._texts.pop(source, None)
        intervals = self._intervals.setdefault(source, [])
        at = bisect_right(intervals, first, key=lambda one: one[0])
        if at and intervals[at - 1][1] >= first - 1:
            at -= 1
            first = intervals[at][0]
        until = at
        while until < len(intervals) and intervals[until][0] <= last + 1:
            last = max(last, intervals[until][1])
            until += 1
        intervals[at:until] = [[first, last]]

    def text(self) -> str:
        """As a server writes it."""
        parts: list[str] = []
        before = ""
        for source in sorted(self._intervals):
            uuid, tag = source
            known = self._texts.get(source)
            if known is None:
                known = self._texts[source] = ":".join(
                    str(first) if first == last else f"{first}-{last}"
                    for first, last in self._intervals[source]
                )
            if uuid == before:
                parts.append(f":{tag}:{known}")
            else:
                head = f"{uuid}:{tag}" if tag else uuid
                parts.append(f"{',' if before else ''}{head}:{known}")
            before = uuid
        return "".join(parts)

    def lacks(self, other: "GtidSet") -> str | None:
        """A transaction of `other` that is not in this set; None if all are."""
        for source, theirs in other._intervals.items():
            ours = self._intervals.get(source, [])
            for first, last in theirs:
                at = bisect_right(ours, first, key=lambda one: one[0])
                # Ours do not touch, so that one of them has all or some number is missing.
                end = ours[at - 1][1] if at else 0
                if end < last:
                    return _name(source, max(first, end + 1))
        return None

    def has(self, name: str) -> bool:
        """Whether the transaction `uuid:7` or `uuid:tag:7` is in it. Raises ValueError."""
        who, _, number = name.rpartition(":")
        uuid, _, tag = who.partition(":")
        ours = self._intervals.get((uuid, tag), [])
        at = bisect_right(ours, int(number), key=lambda one: one[0])
        return bool(at) and ours[at - 1][1] >= int(number)

    def without(self, name: str) -> "GtidSet":
        """A set of all the others. Raises ValueError."""
        left = GtidSet()
        who, _, number = name.rpartition(":")
        uuid, _, tag = who.partition(":")
        one = int(number)
        for source, intervals in self._intervals.items():
            for first, last in intervals:
                parts = [(first, last)]
                if source == (uuid, tag) and first <= one <= last:
                    parts = [(first, one - 1), (one + 1, last)]
                for begin, end in parts:
                    if begin <= end:
                        left._add(source, begin, end)
        return left

    def newest(self) -> list[str]:
        """The transaction with the highest number of each who gave numbers."""
        return [_name(source, found[-1][1]) for source, found in self._intervals.items()]

    def is_behind(self, end: str) -> bool:
        """Whether a server that has executed these has more."""
        return self.lacks(GtidSet.parse(end)) is not None

    def purged(self, before: str) -> str | None:
        """A transaction that we lack and the server does not hold any more; None if none is (S7).

        `before` are those that it has purged.
        """
        return self.lacks(GtidSet.parse(before))

    def unknown(self, executed: str) -> str | None:
        """One of ours that the server never had: of another history; None if there is none."""
        return GtidSet.parse(executed).lacks(self)

    def encoded(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID has it: intervals end before their second number.

        A set without tags in the form that every server knows.
        """
        tagged = any(tag for _, tag in self._intervals)
        count = len(self._intervals)
        head = (_TAGGED << 56) | (count << 8) | _TAGGED if tagged else count
        parts = [struct.pack("<Q", head)]
        for source in sorted(self._intervals):
            uuid, tag = source
            parts.append(UUID(uuid).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            intervals = self._intervals[source]
            parts.append(struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(parts)


def _name(source: Source, number: int) -> str:
    uuid, tag = source
    return f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}"
