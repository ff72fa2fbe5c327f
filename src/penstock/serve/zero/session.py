"""One connection of a shard: all rows if it has none, and then every commit, in order.

What a crash may come between is written down first: the record of a shard says more than its client
has, or the same (record.py). Sending waits for the client, so a slow one costs a few batches of
memory, whatever it is behind (Z10).
"""

import asyncio
import time
from collections.abc import Collection, Coroutine
from typing import Any, Final

import msgspec
import structlog
from msgspec import structs

from penstock.errors import (
    AheadError,
    ConfigError,
    DocumentUnknownError,
    HistoryUnknownError,
    PenstockError,
    ResetError,
    ServiceUnavailableError,
    StateFailedError,
    StateIncompleteError,
    StreamChangedError,
    TrimmedError,
    ZeroError,
)
from penstock.progress import Progress
from penstock.serve.frames import frames
from penstock.serve.zero.acks import parse_ack
from penstock.serve.zero.increments import ROLLBACK, BehindError, Increments, Portion, tables_json
from penstock.serve.zero.marks import Marks
from penstock.serve.zero.record import (
    Mark,
    ShardRecord,
    Version,
    acknowledged,
    announced,
    tables_at,
)
from penstock.serve.zero.request import ZeroRequest
from penstock.serve.zero.resuming import ResetNeededError, place_of
from penstock.serve.zero.service import ZeroService
from penstock.serve.zero.shards import key_of
from penstock.serve.zero.snapshot import Copy, needs_sample, sample
from penstock.serve.zero.socket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL,
    PROTOCOL_ERROR,
    ClosingError,
    DisconnectedError,
    ZeroSocket,
    superseded,
)
from penstock.serve.zero.turns import arrived
from penstock.serve.zero.view import View
from penstock.serve.zero.watermarks import watermark_of
from penstock.subscribe.commits import commit_of
from penstock.subscribe.current import Reading
from penstock.subscribe.scope import Verb
from penstock.telemetry import PUBLISH_ERRORS, READERS, ZERO_MESSAGES, ZERO_RESETS, ZERO_ROWS
from penstock.wire import Block, Stream, without
from penstock.zero.changes import Teller
from penstock.zero.messages import AckRequested, ResetRequired, Status, downstream_text
from penstock.zero.tables import Table

log = structlog.get_logger(__name__)

PROTOCOL: Final = "zero"
_AGAIN_SECONDS: Final = 0.25
"""How often it is asked whether rows are complete."""
_GOODBYE_SECONDS: Final = 1.0
_tables: Final = msgspec.json.Decoder(tuple[Table, ...])


def _close(opening: "asyncio.Future[Reading]") -> None:
    """Close what was opened for nobody."""
    if not opening.cancelled() and opening.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, opening.result().close)


class Session:
    """Serves one connection until it ends."""

    def __init__(
        self, service: ZeroService, socket: ZeroSocket, request: ZeroRequest, who: str, view: View
    ) -> None:
        self.request = request
        self.who = who
        self.key = key_of(who, request.shard.name)
        self.number = arrived()
        self.replaced = asyncio.Event()
        """A newer connection of the shard waits for this one to end."""
        self.state = "waiting"
        self.rows = 0
        self._service = service
        self._socket = socket
        self._view = view
        self._marks: Marks | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Those that its tables are made of."""
        return tuple(sorted(self._view.sources))

    @property
    def watermark(self) -> str:
        """Up to where the client was told."""
        if self._marks is None:
            return ""
        told = self._marks.told
        return watermark_of(told.commit, told.check)

    async def run(self) -> None:
        """Serve; every way it may end is told to the client, if that is there."""
        READERS.labels(PROTOCOL).inc()
        try:
            await self._socket.accept(liveness_seconds=self._service.config.liveness_timeout)
            try:
                async with self._service.turns.alone(self):
                    await self._ended()
            except ClosingError as error:
                await self._goodbye(error.code, str(error))
        except DisconnectedError:
            return
        finally:
            READERS.labels(PROTOCOL).dec()

    async def _ended(self) -> None:
        """Serve, and say why it is over."""
        try:
            await self._until_one_ends(
                self._talk(), self._hear(), self._end_with(self.replaced, self._service.stopped)
            )
        except ClosingError as error:
            await self._goodbye(error.code, str(error))
        except (ResetNeededError, ResetError) as error:
            log.warning("shard must begin anew", shard=self.request.shard.name, reason=str(error))
            ZERO_RESETS.inc()
            said = frames([downstream_text(ResetRequired(message=str(error)))])
            await self._goodbye(NORMAL, "reset required", said)
        except (ZeroError, ConfigError) as error:
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            if self._service.troubled(self.key, error.code, str(error)):
                # Its text names a table and a column, and never a value.
                log.error(  # noqa: TRY400
                    "shard stopped; it needs attention",
                    shard=self.request.shard.name,
                    code=error.code,
                    reason=str(error),
                )
            self.state = "stopped"
            await self._goodbye(INTERNAL_ERROR, str(error))
        except PenstockError as error:
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            self._service.troubled(self.key, error.code, str(error))
            self.state = "stopped"
            await self._goodbye(INTERNAL_ERROR, str(error))

    async def _goodbye(self, code: int, reason: str, said: bytes = b"") -> None:
        """Close, behind what is `said`; while a newer connection waits for it, whoever takes
        nothing is given a moment only: its machine may be gone."""

        async def tell() -> None:
            if said:
                await self._socket.send(said)
            await self._socket.close(code, reason)

        telling, replaced = (asyncio.ensure_future(one) for one in (tell(), self.replaced.wait()))
        try:
            await asyncio.wait((telling, replaced), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((telling,), timeout=_GOODBYE_SECONDS)
            if telling.done():
                telling.result()
        finally:
            telling.cancel()
            replaced.cancel()
            await asyncio.gather(telling, replaced, return_exceptions=True)

    @staticmethod
    async def _until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
        """Do all of it until one of it ends, and raise what that raises."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # In order: what went wrong with the data says more than that the client then left.
            for task in tasks:
                if task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _end_with(replaced: asyncio.Event, stopped: asyncio.Event) -> None:
        waiting = [asyncio.ensure_future(one.wait()) for one in (replaced, stopped)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if stopped.is_set():
            raise ClosingError(GOING_AWAY, "the service is stopping; connect again")
        raise superseded()

    # --- hearing --------------------------------------------------------------------------------

    async def _hear(self) -> None:
        while True:
            text = await self._socket.heard()
            try:
                ack = parse_ack(text)
                if ack is None:
                    continue
                if self._marks is None:
                    raise ValueError("nothing was sent yet")
                moved = self._marks.acknowledged(ack)
            except ValueError as error:
                raise ClosingError(PROTOCOL_ERROR, f"invalid message: {error}") from None
            if moved is not None:
                now_ms = self._service.now_ms()
                record = acknowledged(self._record, moved.mark, moved.changed, now_ms=now_ms)
                self._service.book.later(self.key, record)

    @property
    def _record(self) -> ShardRecord:
        record = self._service.book.get(self.key)
        assert record is not None
        return record

    # --- talking --------------------------------------------------------------------------------

    async def _talk(self) -> None:
        teller, start, changed = await (
            self._copied() if self.request.last is None else self._resumed()
        )
        if self._marks is None:
            self._marks = Marks(start, changed)
        self.state = "streaming"
        try:
            await self._follow(teller, start, self._marks)
        except TrimmedError:
            raise ResetNeededError(
                "retention removed changes before they could be sent: the shard was further behind "
                "than the log may keep for it"
            ) from None
        except (StreamChangedError, AheadError):
            raise ClosingError(
                INTERNAL_ERROR, "the log was replaced by another one; connect again"
            ) from None

    async def _resumed(self) -> tuple[Teller, Mark, int]:
        service, record = self._service, self._service.book.get(self.key)
        place = await place_of(service.log, record, self.request, self._view.fingerprint)
        assert record is not None
        last = self.request.last
        commit = place.mark.commit if last is None else max(last.commit, place.mark.commit)
        tables = tables_at(record, commit)
        teller = Teller(_tables.decode(tables), self._view.mapping)
        bounds = await service.log.bounds()
        kept = tuple(one for one in record.versions if one.commit <= place.mark.commit)
        record = structs.replace(record, log_id=bounds.log_id, versions=kept or record.versions[:1])
        if place.mark.commit < record.floor.commit:
            # Its own database was restored, or the log was: what it lacks is to be kept again.
            record = structs.replace(record, floor=place.mark, changed=place.changed)
        # Who names a commit has it durably.
        record = acknowledged(record, place.mark, place.changed, now_ms=service.now_ms())
        await service.book.save(self.key, record)
        return teller, place.mark, place.changed

    async def _copied(self) -> tuple[Teller, Mark, int]:
        """Send all rows, as one transaction."""
        teller = await self._begun()
        reading, start = await self._opened()
        try:
            await self._begin_record(teller, start, reading.progress)
            self._marks = Marks(start, start.commit)
            self.state = "copying"
            copy = Copy(reading, self._view, teller)
            await self._send_rows(copy, start)
        finally:
            await asyncio.to_thread(reading.close)
        return teller, start, start.commit

    async def _send_rows(self, copy: Copy, start: Mark) -> None:
        size = self._service.config.batch_bytes_max
        await self._socket.send(copy.beginning(start))
        making = asyncio.ensure_future(asyncio.to_thread(copy.next, bytes_max=size))
        try:
            while (portion := await making) is not None:
                if portion.tables is not None:
                    await self._keep((start.commit, portion.tables))
                # The next ones are made while these are sent.
                making = asyncio.ensure_future(asyncio.to_thread(copy.next, bytes_max=size))
                await self._socket.send(portion.frames)
                self.rows += portion.rows
                ZERO_ROWS.inc(portion.rows)
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        await self._socket.send(copy.end(start))
        self._service.served(self.key)

    async def _begun(self) -> Teller:
        """The tables that the shard begins with."""
        mapping = self._view.mapping
        sampling = mapping.sampling()
        if needs_sample(self._view):
            reading, _ = await self._opened()
            size = self._service.config.batch_bytes_max
            try:
                while await asyncio.to_thread(
                    sample, reading, self._view, sampling, bytes_max=size
                ):
                    pass
            finally:
                await asyncio.to_thread(reading.close)
        teller = Teller(sampling.tables(), mapping)
        self._say_left_out(sampling.left_out.keys())
        return teller

    def _say_left_out(self, collections: Collection[str]) -> None:
        if collections:
            log.warning(
                "collections are no tables of Zero",
                shard=self.request.shard.name,
                collections=sorted(collections),
            )

    async def _opened(self) -> tuple[Reading, Mark]:
        """A reading of all rows, once they are complete and there was a commit, and its place."""
        service, waits = self._service, False
        while True:
            try:
                reading = await self._reading()
            except (StateIncompleteError, ServiceUnavailableError, StateFailedError) as error:
                # To close would end zero-cache's process; to wait costs nothing, and is told.
                if not waits:
                    waits = True
                    log.warning(
                        "shard waits for current rows",
                        shard=self.request.shard.name,
                        code=error.code,
                        reason=str(error),
                    )
                service.troubled(self.key, error.code, str(error))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if waits:
                service.served(self.key)
            progress = reading.progress
            try:
                commit = await commit_of(service.log, progress.sequence)
            except BaseException:
                await asyncio.to_thread(reading.close)
                raise
            if commit:
                return reading, Mark(commit, progress.sequence, progress.check)
            await asyncio.to_thread(reading.close)
            await service.log.wait(after=0, timeout_seconds=_AGAIN_SECONDS)
            await asyncio.sleep(_AGAIN_SECONDS / 10)

    async def _reading(self) -> Reading:
        """A reading; closed if nobody waits for it any more, for it keeps rows, and the log."""
        opening = asyncio.ensure_future(
            asyncio.to_thread(self._service.rows.open, self._view.criteria)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise

    async def _begin_record(self, teller: Teller, start: Mark, progress: Progress) -> None:
        service = self._service
        await service.make_room(self.key)
        record = ShardRecord(
            who=self.who,
            name=self.request.shard.name,
            publications=self.request.publications,
            sources=self.sources,
            fingerprint=self._view.fingerprint,
            log_id=progress.log_id,
            snapshot=start,
            floor=start,
            changed=start.commit,
            versions=(Version(start.commit, tables_json(teller.tables)),),
            seen_at=self._service.now_ms(),
        )
        await service.book.save(self.key, record)

    async def _keep(self, *versions: tuple[int, msgspec.Raw]) -> None:
        """Write down tables before the client is told of them."""
        record = self._record
        for commit, tables in versions:
            record = announced(record, commit, tables)
        await self._service.book.save(self.key, record)

    # --- increments -----------------------------------------------------------------------------

    async def _follow(self, teller: Teller, start: Mark, marks: Marks) -> None:
        service, config = self._service, self._service.config
        increments = Increments(
            teller,
            self._view.mapping,
            sources=self._view.sources,
            scope=self._view.scope,
            start=start,
            look_up=self._look_up,
        )
        log_id = self._record.log_id
        left_out = {*teller.left_out}
        told_at = time.monotonic()
        while True:
            after = increments.after.sequence
            try:
                blocks = await service.log.read(after=after, bytes_max=config.batch_bytes_max)
            except TrimmedError:
                if increments.open is not None:
                    await self._socket.send(frames([ROLLBACK]))
                raise
            if blocks and blocks[0].log_id != log_id:
                raise StreamChangedError("the log was replaced")
            portion = await self._told(increments, blocks) if blocks else None
            if portion is not None:
                await self._send(portion, marks)
                if portion.commits:
                    told_at = time.monotonic()
            self._say_left_out(teller.left_out.keys() - left_out)
            left_out |= teller.left_out.keys()
            # Only now: zero-cache comes back again and again to what stopped it.
            service.served(self.key)
            due = told_at + config.status_interval
            if increments.open is None and time.monotonic() >= due:
                told_at = time.monotonic()
                await self._send_status(increments.ended, marks)
            if not blocks:
                timeout = max(0.0, due - time.monotonic())
                await service.log.wait(
                    after=after, timeout_seconds=timeout or config.status_interval
                )

    async def _told(self, increments: Increments, blocks: list[Block]) -> Portion:
        """What `blocks` come to, once the current rows have what that needs."""
        while True:
            try:
                return await asyncio.to_thread(increments.tell, blocks)
            except BehindError:
                self._service.troubled(
                    self.key,
                    "zero.row_awaited",
                    "a change came without its document, and the current rows do not have it yet, "
                    "or are not complete. It is sent once they are: see `penstock status`.",
                )
                await asyncio.sleep(_AGAIN_SECONDS / 10)

    async def _send(self, portion: Portion, marks: Marks) -> None:
        if portion.tables:
            await self._keep(*portion.tables)
        for mark in portion.commits:
            marks.sent(mark, changes=True)
        if portion.frames:
            await self._socket.send(portion.frames)
            ZERO_MESSAGES.inc(portion.messages)
        if portion.stopped is not None:
            raise portion.stopped

    async def _send_status(self, ended: Mark, marks: Marks) -> None:
        """Tell of commits that did not concern it, if there were any."""
        if ended.commit <= marks.told.commit:
            return
        marks.sent(ended, changes=False)
        watermark = watermark_of(ended.commit, ended.check)
        # Never what asks for acknowledgements in the other dialect: zero-cache closes on it (Z1).
        if self.request.shard.dialect == "shipped":
            said = downstream_text(Status(watermark=watermark))
        else:
            said = downstream_text(AckRequested(watermark=watermark))
        await self._socket.send(frames([said]))

    def _look_up(self, stream: Stream, key: bytes, *, to: int) -> bytes | None:
        # The rows may be ahead of the log as it is told here, and renamed there.
        name = stream.source, stream.database, stream.collection
        try:
            known = self._service.rows.look(name, [key], at=to)
        except HistoryUnknownError:
            raise ResetError(
                f"a change of {stream.collection} came without its document, and it is not known "
                f"what that collection is called now: its source has renamed more since than the "
                f"current rows remember, or they were written by an older Penstock. Its shards "
                f"begin anew."
            ) from None
        if known is None or known.sequence < to:
            raise BehindError
        row, scope = known.row, self._view.scope
        if row is None:
            return None
        now = Stream(row.source, row.database, row.tenant, row.collection)
        if not scope.allows(Verb.READ, now):
            return None  # it is another tenant's meanwhile
        if row.full_document is None:
            raise DocumentUnknownError(source=stream.source, collection=stream.collection)
        # Under another name, other fields may be hidden: nothing is shown that either hides.
        hidden = scope.hidden(now) | scope.hidden(stream)
        return without(bytes(row.full_document), hidden)
