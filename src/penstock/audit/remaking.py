"""Make records of a trail anew from the service's log; only what gives the leaf that is kept."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct

from penstock.audit.chain import leaf
from penstock.audit.checks import leaf_seen, pieces_fit, seen, spilled_of
from penstock.audit.config import DOCUMENT_BYTES_MAX
from penstock.audit.entries import made_ready
from penstock.audit.own import OWN, Deed
from penstock.audit.reading import Reader
from penstock.audit.records import COLUMNS, Row, id_of, record_of, without_content
from penstock.audit.trail import RAW
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient, ReadRequest

_NEWER: Final = ("paths", "masked")
"""Fields that records of older versions do not have."""
_AHEAD: Final = 16
"""So many places of a run may be unknown to the log (records of our own) before one that it has."""


class Remade(Struct, frozen=True, kw_only=True):
    """A record as it was written, with its place."""

    id: str
    record: RawBSONDocument
    spilled: bytes | None
    source: str


class Wanted(Struct, frozen=True, kw_only=True):
    """A place whose record is to be found, and what proves it."""

    at: int
    id: str | None
    """That of the record that is there now; it may be another's."""
    leaf: bytes
    salt: bytes
    deed: Deed | None
    """An erasure that holds the place: the content stays away."""

    def proved_by(
        self, record: RawBSONDocument, spilled: bytes | None, *, source: str
    ) -> Remade | None:
        """The record of this place, if it is `record`."""
        read = seen(record)
        if read.parts is None:
            return None
        fields: dict[str, Any] = {**record, "at": Int64(self.at)}
        if self.deed is not None:
            digest = self.deed.digest_at(self.at) or b""
            if leaf(read.parts.head, digest) != self.leaf:
                return None
            said = {"at": Int64(self.deed.at), "digest": Binary(digest), "by": self.deed.id}
            fields = {**without_content(fields), "erased": said}
            spilled = None
        else:
            if read.erased is not None or leaf_seen(read, self.salt) != self.leaf:
                return None
            beside = spilled_of(record)
            if beside is not None and not pieces_fit(beside, iter((spilled or b"",))):
                return None
        made = RawBSONDocument(bson.encode(fields), RAW)
        return Remade(id=str(made["_id"]), record=made, spilled=spilled, source=source)


class Log:
    """A service's log, from which records are made as the pipeline made them."""

    def __init__(
        self,
        endpoint: str,
        *,
        source: str,
        tz: str,
        bytes_max: int,
        id_key: bytes = b"",
        credentials: Credentials = NOBODY,
    ) -> None:
        """`endpoint` is the service's Flight address, to which `credentials` go; the rest is the
        pipeline's own, and the trail's `id_key`."""
        self._credentials = credentials
        self._endpoint = endpoint
        self._source = source
        self._tz = tz
        self._bytes_max = bytes_max
        self._id_key = id_key

    def remake(self, wanted: dict[int, Wanted], reader: Reader) -> dict[int, Remade]:
        """What the log has of these places. Raises ServiceUnavailableError, TrimmedError.

        A record is known by its id; else it is looked for between its neighbours in the trail.
        """
        ids = {one.id: one for one in wanted.values() if one.id is not None}
        runs = [_Run(run, reader) for run in _runs(wanted)]
        made: dict[int, Remade] = {}
        for row in self._rows():
            name = id_of(row["event_id"], self._id_key)
            beginning = [run for run in runs if run.after == name]
            for run in runs:
                if run.before == name:
                    run.open = False
            record = None
            if name in ids or any(run.open for run in runs):
                record = record_of(row, tz=self._tz, id_key=self._id_key)
            if record is not None:
                places = [ids[name]] if name in ids else []
                places += [one for run in runs if run.open for one in run.next(made)]
                for one in places:
                    found = None if one.at in made else self._tried(one, record)
                    if found is not None:
                        made[one.at] = found
                        break
            for run in beginning:
                run.open = True
            if len(made) == len(wanted):
                break
        return made

    def _tried(self, wanted: Wanted, record: dict[str, Any]) -> Remade | None:
        """With its values in it, and spilled: the limit may have been another one. Also without
        what records of before do not have."""
        forms = [record]
        for newer in _NEWER:
            forms += [
                {name: value for name, value in form.items() if name != newer}
                for form in forms
                if newer in form
            ]
        for form, bytes_max in product(forms, (self._bytes_max, DOCUMENT_BYTES_MAX, 0)):
            ready = made_ready(form, bytes_max=bytes_max)
            if len(ready["record"]) > DOCUMENT_BYTES_MAX:
                continue
            document = RawBSONDocument(ready["record"], RAW)
            found = wanted.proved_by(document, ready["spilled"], source="log")
            if found is not None:
                return found
        return None

    def _rows(self) -> Iterator[Row]:
        with LogClient(self._endpoint, credentials=self._credentials) as client:
            bounds = client.bounds()
            request = ReadRequest(
                log_id=bounds.log_id,
                after=bounds.trimmed,
                until=bounds.head,
                source=self._source,
                columns=COLUMNS,
            )
            for batch in client.read(request):
                yield from batch.to_pylist()


class _Run:
    """Places in a row that are wanted, and what stands before and behind them."""

    def __init__(self, wanted: list[Wanted], reader: Reader) -> None:
        self._wanted = wanted
        self.after = _neighbour(reader, wanted[0].at, -1)
        self.before = _neighbour(reader, wanted[-1].at, 1)
        self.open = self.after is None
        """Whether the log has come to it."""

    def next(self, made: dict[int, Remade]) -> list[Wanted]:
        """Those of which the next row may be."""
        left = [one for one in self._wanted if one.at not in made]
        if not left:
            self.open = False
        return left[:_AHEAD]


def _neighbour(reader: Reader, at: int, step: int) -> str | None:
    """The id of the next record before or behind a place that a log may have."""
    for _ in range(_AHEAD):
        at += step
        record = reader.record_at(at)
        if record is None:
            return None
        if record["op"] != OWN:
            return str(record["_id"])
    return None


def _runs(wanted: dict[int, Wanted]) -> Iterator[list[Wanted]]:
    run: list[Wanted] = []
    for at in sorted(wanted):
        if run and run[-1].at != at - 1:
            yield run
            run = []
        run.append(wanted[at])
    if run:
        yield run
