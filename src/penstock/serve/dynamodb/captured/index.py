"""The index of captured streams: a thread that reads the log and keeps `facts` beside it.

What was read is told in the transaction that keeps what was made of it, and readers are shown only
what is kept. So a crash at any point repeats nothing and moves no stream, label or shard that
anybody was told of. ListStreams and DescribeStream look here and never at the log.

It is derived from the log, but not again from the same log: labels are drawn when a stream is first
seen. Without its files, all streams begin anew under other labels.
"""

import os
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.clocks import Clock
from penstock.errors import (
    AheadError,
    GapError,
    LogCorruptError,
    LogError,
    LogFormatError,
    LogLockedError,
    PenstockError,
    StreamChangedError,
    TrimmedError,
)
from penstock.event import ChangeEvent, Kind
from penstock.folders import make_folder
from penstock.kv import MAP_BYTES, Env, Transaction, open_env
from penstock.locks import hold
from penstock.ports import Bounds, SourceState
from penstock.progress import Progress
from penstock.serve.dynamodb.captured.facts import Book, Limits, Stream, tail_of
from penstock.serve.dynamodb.captured.names import Name, table_name
from penstock.serve.dynamodb.config import VIEWS, CapturedConfig, ViewType
from penstock.subscribe.resume import resume
from penstock.wire import Block, decode_message

logger = structlog.get_logger(__name__)

_META: Final = b"meta"
_STREAMS: Final = b"streams"
_READ_KEY: Final = b"read"
_FORMAT: Final = 1
_LOCK_NAME: Final = "writer.lock"
_ADVICE: Final = "remove the folder: all streams begin anew then, under other ARNs."
_VIEWS: Final[Mapping[str, ViewType]] = {view: view for view in VIEWS}
_EVENTS_MAX: Final = 20_000
_BYTES_MAX: Final = 8 << 20
"""How much of the log one transaction takes."""
_WAIT_SECONDS: Final = 0.1
_TIDY_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0


class CapturedLog(Protocol):
    """What is needed of a log, on threads."""

    def bounds_now(self) -> Bounds: ...

    def sources_now(self) -> list[SourceState]: ...

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]: ...

    def check_at_now(self, sequence: int) -> int | None: ...

    def commit_end(self, *, after: int, events_max: int) -> int: ...

    def wait_now(self, *, after: int, timeout_seconds: float | None = None) -> bool: ...


class Read(Struct, frozen=True, kw_only=True):
    """How much of the log was read, and what goes on from there; kept with the streams."""

    format: int = _FORMAT
    log_id: int = 0
    sequence: int = 0
    check: int = 0
    """The 32-bit check of the place."""
    ends_commit: bool = True
    next_number: int = 1
    label_ms: int = 0
    copies: dict[str, tuple[str, list[str]]] = {}


class _OfFormat(Struct):
    format: int


class Shown(Struct, frozen=True, dict=True):
    """What is kept, as readers see it. Never changes."""

    log_id: int
    sequence: int
    """Everything up to here was read."""
    streams: Mapping[int, Stream]
    failure: str = ""
    """What keeps the index from going on."""

    @cached_property
    def by_tail(self) -> dict[str, Stream]:
        """The streams by what names them in ARNs, in that order."""
        return dict(sorted((tail_of(stream), stream) for stream in self.streams.values()))

    @cached_property
    def by_table(self) -> dict[str, Stream]:
        """The newest stream of each table, in the order of the tables' names."""
        # A table's labels are in the order of its streams.
        newest = {tail.partition("/")[0]: stream for tail, stream in self.by_tail.items()}
        return dict(sorted(newest.items()))


def index_path(log: Path) -> Path:
    """Where the index of the log at `log` lies."""
    return log / "dynamodb"


class CapturedIndex:
    """The only writer of the index of one log. `step` takes what there is; once started a thread
    does, until closed. No error ends the thread: it is shown to readers, and tried again."""

    def __init__(
        self,
        log: CapturedLog,
        path: Path,
        config: CapturedConfig,
        *,
        clock: Clock,
        lacking: Mapping[str, frozenset[ViewType]] | None = None,
    ) -> None:
        """`path` is the index's own. `lacking`: by source, the views that it never gives.

        Raises LogLockedError while another process keeps the index."""
        self._log = log
        self._clock = clock
        self._wishes = Wishes(config)
        self._lacking = dict(lacking or {})
        self._limits = Limits(config.shard_age * 1000, config.shard_bytes)
        self._turn = threading.Condition()
        self._working = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._tidied = float("-inf")
        self._compared = False
        """Whether what was read is what the log has there, as it was since this was opened."""
        make_folder(path, mode=0o700)
        self.path = path
        # Two would number streams alike and undo what the other has told.
        self._lock = _locked(path)
        try:
            self._env: Env = open_env(path, map_bytes=MAP_BYTES, create=True)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, LogCorruptError):
                raise _damaged(path) from None
            raise
        try:
            self._env.databases((_META, _STREAMS), create=True)
            self._read, self._book = self._loaded()
            self._show("")
            self._book.configured(read=self._read.sequence, now_ms=clock.wall_ms())
            self._keep(self._read)
        except BaseException:
            self._release()
            raise

    def start(self) -> None:
        """Read on a thread, until closed."""
        self._thread = threading.Thread(target=self._run, name="dynamodb-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the write under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._release()

    def _release(self) -> None:
        self._env.close()
        os.close(self._lock)

    @property
    def shown(self) -> Shown:
        """What is kept now. From any thread."""
        return self._shown

    def wait(self, sequence: int, *, seconds: float) -> Shown:
        """What is kept once everything of the log that is there was read up to `sequence`, or at
        the timeout."""
        log_id = self._log.bounds_now().log_id

        def is_read() -> bool:
            shown = self._shown
            return shown.log_id == log_id and shown.sequence >= sequence

        with self._turn:
            self._turn.wait_for(lambda: is_read() or bool(self._shown.failure), seconds)
            return self._shown

    # --- writing --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take the next entries in one transaction; False if there was nothing to do."""
        with self._kept():
            self._place()
            self._tidy_now_and_then()
            return self._take_some()

    def tidy(self) -> None:
        """Do what time does: shards grow old, and retention removes what streams had."""
        with self._kept():
            if self._read.ends_commit:
                read = self._read
                now_ms = self._clock.wall_ms()
                self._book.roll(read=read.sequence, check=read.check, now_ms=now_ms)
            self._book.forget(
                trimmed=self._log.bounds_now().trimmed,
                sources=frozenset(state.source for state in self._log.sources_now()),
            )
            if self._book.changed:
                self._keep(self._read)

    @contextmanager
    def _kept(self) -> Generator[None]:
        """One thread at a time; what is in memory is never more than what was kept."""
        with self._working:
            try:
                yield
            except BaseException:
                self._read, self._book = self._loaded()
                raise

    def _take_some(self) -> bool:
        read = self._read
        end = self._log.commit_end(after=read.sequence, events_max=_EVENTS_MAX)
        if end <= read.sequence:
            return False
        blocks = self._log.read_now(after=read.sequence, until=end, bytes_max=_BYTES_MAX)
        if not blocks or blocks[0].log_id != read.log_id:
            return True  # the log was replaced between two looks: look again
        now_ms = self._clock.wall_ms()
        check = read.check
        for block in blocks:
            check = self._take(block, check, now_ms)
        last = blocks[-1]
        i = last.stop - 1
        self._keep(
            msgspec.structs.replace(
                read,
                sequence=last.last_sequence,
                check=check,
                ends_commit=last.ends_commit(i),
            )
        )
        return True

    def _take(self, block: Block, check: int, now_ms: int) -> int:
        """Take the entries of a block; the check behind them, where `check` is that before."""
        kinds: list[int] = block.kinds().tolist()
        for i in range(block.start, block.stop):
            sequence, before, check = block.first_sequence + i, check, block.history(i)
            if kinds[i] == Kind.DATA:
                stored = block.stored(i)
                self._book.change(
                    pb.Event.FromString(stored),
                    sequence,
                    before=before,
                    check=check,
                    size=len(stored),
                    begins_commit=block.ordinal(i) == 0,
                    now_ms=now_ms,
                )
                continue
            event = decode_message(block.message(i)).event
            assert not isinstance(event, ChangeEvent)
            self._book.control(event, sequence, now_ms=now_ms)
        return check

    def _tidy_now_and_then(self) -> None:
        now = self._clock.steady_seconds()
        if now - self._tidied >= _TIDY_SECONDS:
            self._tidied = now
            self.tidy()

    def _place(self) -> None:
        """Hold what was read against the log: it may have been trimmed past it, or replaced."""
        read, bounds = self._read, self._log.bounds_now()
        here = read.log_id == bounds.log_id and bounds.trimmed <= read.sequence <= bounds.head
        # Files that were put back by hand make no other log, but may hold other entries.
        if here and (self._compared or self._log.check_at_now(read.sequence) == read.check):
            self._compared = True
            return
        now_ms = self._clock.wall_ms()
        marker = Progress(read.log_id, read.sequence, read.check)
        try:
            check = self._log.check_at_now(read.sequence)
            place = resume(marker, bounds=bounds, check=check)
            # The same entries, but of a log that was restored: what others read of the one before
            # may not be in it, and their sequence numbers would stand for other entries here.
            self._book.interrupted(
                read=min(read.sequence, place.sequence), first=place.sequence + 1, now_ms=now_ms
            )
        except TrimmedError:
            logger.warning("streams over DynamoDB's protocol missed changes that were trimmed")
            place = Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
            self._book.interrupted(read=read.sequence, first=place.sequence + 1, now_ms=now_ms)
        except (StreamChangedError, AheadError, GapError):
            if read.log_id:
                logger.warning("the log is another one; all streams begin anew")
            place = Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
            self._book.cleared()
        self._keep(
            msgspec.structs.replace(
                read,
                log_id=place.log_id,
                sequence=place.sequence,
                check=place.check,
                ends_commit=True,
            )
        )

    def _keep(self, read: Read) -> None:
        """Make durable what was read and what it made, then show it."""
        book = self._book
        read = msgspec.structs.replace(
            read, next_number=book.next_number, label_ms=book.label_ms, copies=dict(book.copies)
        )
        with self._env.write() as txn:
            txn.put(_READ_KEY, _encoder.encode(read), db=self._env[_META])
            for number in book.changed:
                key = number.to_bytes(8, "big")
                stream = book.streams.get(number)
                if stream is None:
                    txn.delete(key, db=self._env[_STREAMS])
                else:
                    txn.put(key, _encoder.encode(stream), db=self._env[_STREAMS])
        book.taken()
        self._read = read
        self._show("")

    def _loaded(self) -> tuple[Read, Book]:
        try:
            with self._env.read() as txn:
                read = self._loaded_read(txn)
                with txn.cursor(self._env[_STREAMS]) as cursor:
                    streams = [
                        _stream.decode(value) for value in cursor.iternext(keys=False, values=True)
                    ]
        except (msgspec.MsgspecError, LogCorruptError):
            raise _damaged(self.path) from None
        book = Book(
            streams,
            limits=self._limits,
            wished=self._wishes.of,
            lacking=self._lacking,
            next_number=read.next_number,
            label_ms=read.label_ms,
            copies=read.copies,
        )
        return read, book

    def _loaded_read(self, txn: Transaction) -> Read:
        written = txn.get(_READ_KEY, db=self._env[_META])
        if written is None:
            return Read()
        # Of another format, more may be otherwise than its number.
        found = _of_format.decode(written).format
        if found != _FORMAT:
            raise LogFormatError(
                f"the index of DynamoDB streams at {self.path} has format {found}; this Penstock "
                f"reads {_FORMAT}. Nothing was changed. Use the version that wrote it, or {_ADVICE}"
            )
        return _read.decode(written)

    def _show(self, failure: str) -> None:
        read = self._read
        with self._turn:
            self._shown = Shown(read.log_id, read.sequence, dict(self._book.streams), failure)
            self._turn.notify_all()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                went_on = self.step()
                if self._shown.failure:
                    logger.info("the index of DynamoDB streams goes on")
                    self._show("")
                if went_on:
                    continue
                self._log.wait_now(after=self._read.sequence, timeout_seconds=_WAIT_SECONDS)
            except (LogError, TrimmedError) as error:
                self._fail(error.code, str(error), wait=_WAIT_SECONDS)
            except PenstockError as error:
                self._fail(error.code, str(error), wait=_RETRY_SECONDS)
            except Exception as error:  # a defect here must not go unseen
                # Where it happened, but not its text, which might quote a document.
                where = traceback.format_tb(error.__traceback__)
                self._fail(type(error).__name__, "an unexpected error", _RETRY_SECONDS, where=where)

    def _fail(self, code: str, message: str, wait: float, **where: object) -> None:
        if not self._shown.failure:
            logger.error("the index of DynamoDB streams does not go on", code=code, **where)
        self._show(message)
        self._stopping.wait(wait)


def _locked(path: Path) -> int:
    """The exclusive lock on the index: a descriptor that holds it until it is closed."""
    return hold(
        path / _LOCK_NAME,
        refused=lambda owner: LogLockedError(
            f"process {owner} serves the DynamoDB streams of this log and keeps their index at "
            f"{path}, which has one writer. Nothing was changed. Stop that process, or set "
            f"[serve] dynamodb = 'off' here."
        ),
    )


def _damaged(path: Path) -> LogCorruptError:
    return LogCorruptError(
        f"the index of DynamoDB streams at {path} is damaged. The log is another file, and nothing "
        f"was changed. To go on, {_ADVICE}"
    )


class Wishes:
    """Which views are asked for."""

    def __init__(self, config: CapturedConfig) -> None:
        self._views = config.views
        self._default = config.view

    def of(self, name: Name) -> ViewType | None:
        """The view that is asked for of a collection; None for the best."""
        wish = self._views.get(table_name(name), self._default) if self._views else self._default
        return _VIEWS.get(wish)


_encoder: Final = msgspec.msgpack.Encoder()
_of_format: Final = msgspec.msgpack.Decoder(_OfFormat)
_read: Final = msgspec.msgpack.Decoder(Read)
_stream: Final = msgspec.msgpack.Decoder(Stream)
