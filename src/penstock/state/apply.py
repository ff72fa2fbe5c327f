"""Entries of the log → what the state holds after them, inside one write transaction."""

import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import lmdb
import msgspec
import structlog

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.capture.deadletter import COLLECTION as DEAD_LETTERS
from penstock.errors import LogError
from penstock.event import ChangeEvent, Kind, Operation
from penstock.kv import Env, Transaction
from penstock.state.facts import Facts
from penstock.state.layout import (
    BEFORE,
    COLLECTIONS,
    DROPPED,
    ROWS,
    SOURCES,
    Name,
    Row,
    name_key,
    number_key,
    number_of,
    pack_row,
    row_key,
    unpack_row,
)
from penstock.state.tables import is_empty
from penstock.updates import InexactError, apply_update
from penstock.wire import Block, decode_message

logger = structlog.get_logger(__name__)
_json = msgspec.json.Encoder()


class Reader(Protocol):
    """A reading under way, which must go on seeing the rows as they were when it began."""

    id: int
    numbers: frozenset[int]
    cursor: bytes
    """It has read every row up to this place."""


class _Letter(msgspec.Struct):
    """What a dead letter says of the row that it is about (`penstock.capture.deadletter`)."""

    database: str
    collection: str
    tenant: str
    key: msgspec.Raw = msgspec.Raw(b"null")
    """Not `Raw | None`, which takes null alone."""


class Applying:
    """One write. Rows are gathered, the last of each key, and written in the order of their keys.

    Call `finish` at the end; until then nothing more than `facts` may have changed.
    """

    def __init__(
        self, txn: Transaction, env: Env, facts: Facts, readings: Sequence[Reader]
    ) -> None:
        self._txn = txn
        self._env = env
        self._facts = facts
        self._readings = readings
        self._pending: dict[bytes, bytes | None] = {}

    def take(self, blocks: Iterable[Block]) -> None:
        """Apply the entries in view, in order."""
        for block in blocks:
            kinds: list[int] = block.kinds().tolist()
            for i in range(block.start, block.stop):
                sequence = block.first_sequence + i
                if kinds[i] == Kind.DATA:
                    self._change_or_doubt(pb.Event.FromString(block.stored(i)), sequence)
                    continue
                event = decode_message(block.message(i)).event
                assert not isinstance(event, ChangeEvent)
                # Some ask whether a collection has rows.
                self._write_pending()
                self._facts.control(event, sequence, is_empty=self._is_empty)

    def finish(self) -> None:
        """Write what is gathered, and what became of the facts."""
        self._write_pending()
        write_facts(self._txn, self._env, self._facts)

    def _change_or_doubt(self, event: pb.Event, sequence: int) -> None:
        """Apply a change. What cannot be applied leaves its own collection in doubt until that is
        copied again, and no other one."""
        try:
            self._change(event, sequence)
        except (LogError, lmdb.Error, MemoryError):
            raise  # of the state's own store, or of the moment
        except Exception as error:
            name = Name(event.source, event.database, event.collection)
            known = self._facts.collections.get(name)
            if known is None or all(doubt.letter for doubt in known.doubts):
                # Where it happened, but not its text, which might quote a document.
                logger.warning(
                    "state has a collection in doubt",
                    collection=str(name),
                    sequence=sequence,
                    error=type(error).__name__,
                    where=traceback.format_tb(error.__traceback__),
                )
            if event.collection == DEAD_LETTERS:
                self._facts.interrupted(event.source)  # its collection is unknown
            else:
                self._facts.doubted(name, sequence, "")

    def _change(self, event: pb.Event, sequence: int) -> None:
        name = Name(event.source, event.database, event.collection)
        number = self._facts.heard(name, sequence).number
        place, shortened = row_key(number, event.key)
        if event.operation_type == Operation.DELETE:
            self._pending[place] = None
            return
        document: bytes | None = event.full_document
        if not document or event.unchanged:
            document = _built_on(self._row(place), event)
        time = event.cluster_time
        row = Row(
            document,
            event.document_id,
            event.tenant,
            event.id,
            time.t,
            time.i,
            event.timestamp,
            event.full_document_as_of_event,
            event.key if shortened else b"",
        )
        self._pending[place] = pack_row(sequence, row)
        if name.collection == DEAD_LETTERS:
            self._poisoned(event, sequence)

    def _poisoned(self, event: pb.Event, sequence: int) -> None:
        """A change came as a letter: what its row is now, nobody knows."""
        letter = msgspec.json.decode(event.full_document, type=_Letter)
        name = Name(event.source, letter.database, letter.collection)
        if bytes(letter.key) == b"null":
            self._facts.doubted(name, sequence, event.document_id)
            return
        place, shortened = row_key(self._facts.heard(name, sequence).number, bytes(letter.key))
        before, time = self._row(place), event.cluster_time
        row = Row(
            None,
            before.document_id if before else bytes(letter.key).decode(),
            before.tenant if before else letter.tenant,
            event.id,
            time.t,
            time.i,
            event.timestamp,
            False,
            bytes(letter.key) if shortened else b"",
        )
        self._pending[place] = pack_row(sequence, row)

    def _is_empty(self, number: int) -> bool:
        return is_empty(self._txn, self._env, number)

    def _row(self, place: bytes) -> Row | None:
        value = self._pending.get(place, b"")
        if value == b"":
            value = self._txn.get(place, db=self._env[ROWS])
        return unpack_row(value) if value else None

    def _write_pending(self) -> None:
        txn, rows = self._txn, self._env[ROWS]
        for place in sorted(self._pending):
            if self._readings:
                self._keep_before(place)
            value = self._pending[place]
            if value is None:
                txn.delete(place, db=rows)
            else:
                txn.put(place, value, db=rows)
        self._pending.clear()

    def _keep_before(self, place: bytes) -> None:
        """Keep the row as it was for each reading that has not come to it."""
        number = number_of(place)
        for reading in self._readings:
            if number in reading.numbers and place > reading.cursor:
                key = number_key(reading.id) + place
                if self._txn.get(key, db=self._env[BEFORE]) is None:
                    before = self._txn.get(place, db=self._env[ROWS]) or b""
                    self._txn.put(key, before, db=self._env[BEFORE])


def _built_on(before: Row | None, event: pb.Event) -> bytes | None:
    """The document after a change that does not say the whole of it; None if it is not known."""
    if before is None or before.document is None:
        return None
    known: dict[str, Any] = msgspec.json.decode(before.document)
    if event.full_document:
        said: dict[str, Any] = msgspec.json.decode(event.full_document)
        if any(name not in known for name in event.unchanged):
            return None
        return _json.encode({**said, **{name: known[name] for name in event.unchanged}})
    if not event.update_description:
        return None
    try:
        update = msgspec.json.decode(event.update_description)
        told = event.disambiguated_paths
        paths = msgspec.json.decode(told) if told else None
        return _json.encode(apply_update(known, update, paths))
    except InexactError:
        return None


def write_facts(txn: Transaction, env: Env, facts: Facts) -> None:
    """Write what of `facts` changed."""
    for source in facts.changed_sources:
        txn.put(source.encode(), _json.encode(facts.sources[source]), db=env[SOURCES])
    for name in facts.changed:
        known = facts.collections.get(name)
        if known is None:
            txn.delete(name_key(name), db=env[COLLECTIONS])
        else:
            txn.put(name_key(name), _json.encode(known), db=env[COLLECTIONS])
    for number in facts.forgotten:
        txn.put(number_key(number), b"", db=env[DROPPED])
    facts.taken()
