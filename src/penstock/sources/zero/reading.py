"""What a server says, as what a source says: transactions whole, copies in parts. No socket.

A transaction counts with its commit: until then its changes are held, so that a rollback leaves
nothing. A copy, which may be all there is, is handed on as it comes: it cannot be rolled back.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import uuid4

from msgspec import structs

from penstock.errors import PositionLostError, SourceUnavailableError, UndecodableError
from penstock.event import AnyEvent, Commit, Fragment
from penstock.sources.zero.config import ZeroSourceConfig
from penstock.sources.zero.events import Place, Teller
from penstock.sources.zero.held import Held
from penstock.sources.zero.positions import ZeroPosition, tables_of
from penstock.sources.zero.tables import Announced, UnfitError
from penstock.zero import messages as said

EVENTS_MAX: Final = 1000
"""In one fragment."""
_DATA: Final = b'["data"'

Item = Commit | Fragment


class Reset(Exception):  # noqa: N818 - no error: a word of the server
    """The server says that we must begin anew."""


class Reading:
    """One session. `position` is that of what was returned last."""

    def __init__(
        self,
        source: str,
        config: ZeroSourceConfig,
        position: ZeroPosition | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._config = config
        self._clock = clock
        self._teller = Teller(source, tenant=config.tenant)
        self._new = position is None
        self.position = position or ZeroPosition(scope=config.scope)
        self._tables = self._announced()
        self._begin: said.Begin | None = None
        self._held = Held()
        self._place = Place("", "", 0, None)
        self._events: list[AnyEvent] = []
        self._copying = False
        """Whether what comes is the copy with which a replica begins."""
        self._snapshot = ""
        self._lost: str | None = None
        """Why a copy is made that we did not want."""
        self._connected_at: str | None = None
        """Behind which commit this connection began."""
        self.acknowledgement: said.Upstream | None = None
        """What the server may be told once the item that was returned last is durable."""
        self.copied = False
        """Whether a copy has just ended."""

    # --- where we stand --------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether it may be said that nothing happens: nothing is half told."""
        return not self._copying

    @property
    def there(self) -> list[str] | None:
        """The tables of the server; None before it has announced all of them."""
        return None if self.position.watermark is None else self._tables.there

    def opening(self) -> list[Item]:
        """What is said first: where we stand (P21), and whether that is of other tables."""
        if self._new and self._config.start == "now":
            return []  # it is said where now is
        before, after = self.position.scope, self._config.scope
        if before == after:
            return [self.heartbeat()]
        known = list(tables_of(self.position))
        added = [one for one in known if one in after and one not in before]
        removed = [one for one in known if one in before and one not in after]
        place = self.position.place
        facts: dict[str, object] = {
            "before": structs.asdict(before),
            "after": structs.asdict(after),
            "added": added,
            "removed": removed,
            "copied": False,
            "since": place,
        }
        identity = f"{self.position.generation}:{place}:{before}:{after}"
        events = [self._system("scope_changed", identity, facts)]
        for table in removed:
            gap = {"from": place, "to": None, "reason": "scope"}
            events.append(self._system("gap", f"scope:{identity}", gap, table=table))
        self.position = structs.replace(self.position, scope=after)
        return [self._commit(events)]

    def heartbeat(self) -> Commit:
        """That nothing happened up to here."""
        self.acknowledgement = None
        return self._commit([])

    def connected(self, *, anew: bool) -> None:
        """Another connection begins, behind our position or with a copy of everything."""
        self._forget()
        self.copied = False
        self._copying = anew
        self._tables = Announced({}, teller=self._teller, scope=self._config.scope)
        if not anew:
            self._tables = self._announced()
        self._connected_at = None if anew else self.position.watermark

    def lost(self, message: str) -> tuple[list[Item], PositionLostError | None]:
        """The server says that we must begin anew: what is said of it, and the error to stop with.

        Where a copy follows, the gap is said with it, for only then is known where it ends.
        Raises SourceUnavailableError where it says so while it copies: it is asked again.
        """
        if self._copying:
            raise SourceUnavailableError(
                f"{self._source}: the server began a copy and then said that it must begin anew "
                f"({message}). Nothing of it was kept; it is asked again."
            )
        if self._config.on_position_lost != "halt":
            self._lost = message
            return [], None
        error = PositionLostError(source=self._source, position=self.position.place, detail=message)
        if self.position.gap_said:
            return [], error
        gap = self._gap(message, until=None)
        self.position = structs.replace(self.position, gap_said=True)
        return [self._commit([gap])], error

    # --- what the server says --------------------------------------------------------------------

    def take(self, text: bytes) -> Iterator[Item]:
        """What a message comes to. Raises UndecodableError, Reset, SourceUnavailableError."""
        self.acknowledgement = None
        if self._begin is not None and not self._copying and text.startswith(_DATA):
            self._hold(text)
            return
        try:
            message = said.parse_downstream(text)
            yield from self._taken(message, text)
        except (said.MessageError, UnfitError) as error:
            raise self._undecodable(str(error)) from None
        except RecursionError:
            raise self._undecodable("a value that is nested too deeply") from None

    def _taken(self, message: said.Downstream, text: bytes) -> Iterator[Item]:
        match message:
            case said.Begin():
                self._begun(message)
                if self._copying:
                    self._started(message)
            case said.Data(change):
                if self._begin is None:
                    raise UnfitError("a change outside a transaction")
                if not self._copying:
                    self._hold(text)
                    return
                yield from self._told(change)
            case said.Committed():
                yield from self._committed(message)
            case said.Rollback():
                if self._begin is None or self._copying:
                    raise UnfitError("a rollback of what cannot be rolled back")
                self._forget()
            case said.ResetRequired():
                raise Reset(message.message or "the server does not say why")
            case said.Status():
                if not self._copying:
                    yield self._status(message.watermark, asked=message.ack)
            case said.AckRequested():
                mark = message.watermark or self.position.watermark
                if mark is not None and not self._copying:
                    yield self._status(mark, asked=True)

    def _begun(self, begin: said.Begin) -> None:
        if self._begin is not None:
            raise UnfitError("a transaction within another")
        known = self.position.watermark
        # As zero-cache does, watermarks are compared as plain text. Right behind a reconnection
        # the server may repeat what we have; once it went on it may not go back.
        back = known is not None and begin.watermark <= known
        if back and not self._copying and known != self._connected_at:
            raise UnfitError(f"a transaction {begin.watermark!r} behind {known!r}")
        self._begin = begin

    def _hold(self, text: bytes) -> None:
        try:
            self._held.add(text)
        except OSError as error:
            raise SourceUnavailableError(
                f"{self._source}: a transaction that is too large for memory cannot be held in "
                f"the folder for temporary files: {error.strerror}. Nothing of it was kept, and "
                f"the server sends it again."
            ) from error

    def _committed(self, committed: said.Committed) -> Iterator[Item]:
        begin, mark = self._begin, committed.watermark
        if begin is None:
            raise UnfitError("a commit outside a transaction")
        if begin.watermark != mark:
            raise UnfitError(f"a commit {mark!r} of the transaction {begin.watermark!r}")
        if self._copying:
            yield self._completed(mark)
            return
        if self.position.watermark is not None and mark <= self.position.watermark:
            self._forget()  # it comes again: we have it
            return
        millis = committed.commit_time_ms
        at = self.position.at if millis is None else int(millis)
        self._begin_place(mark, replica=self.position.replica, millis=at, copy=False)
        self._tables.json_as_text = begin.json == "s"
        for text in self._held.taken():
            message = said.parse_downstream(text)
            assert isinstance(message, said.Data)
            yield from self._told(message.change)
        self._begin = None
        self.position = structs.replace(
            self.position, watermark=mark, at=at, gap_said=False, tables=self._tables.text()
        )
        kind = said.FirstAck if self._config.dialect == "first" else said.CommitAck
        self.acknowledgement = None if begin.skip_ack else kind(watermark=mark)
        yield self._commit(self._taken_events())

    def _told(self, change: said.Change) -> Iterator[Item]:
        events = self._tables.events(change, self._place, copy=self._copying)
        if self._copying and not self._tells_rows:
            return
        self._events += events
        if len(self._events) >= EVENTS_MAX:
            yield Fragment(source=self._source, events=tuple(self._taken_events()))

    def _status(self, mark: str, *, asked: bool) -> Commit:
        self.position = structs.replace(self.position, status=mark)
        commit = self._commit([])
        if asked:
            first = self._config.dialect == "first"
            self.acknowledgement = (said.FirstAck if first else said.StatusAck)(watermark=mark)
        return commit

    # --- copies ----------------------------------------------------------------------------------

    @property
    def _tells_rows(self) -> bool:
        """Whether the rows of a copy are wanted; else it only tells where now is."""
        if self._lost is not None:
            return self._config.on_position_lost == "snapshot"
        return self._config.start == "snapshot" or not self._new

    def _started(self, begin: said.Begin) -> None:
        generation = self.position.generation
        if self.position.watermark is not None:
            generation += 1
        if self._lost is not None:
            self._events.append(self._gap(self._lost, until=begin.watermark))
        self.position = structs.replace(self.position, generation=generation)
        at = int(self._clock() * 1000)
        self._begin_place(begin.watermark, replica=begin.watermark, millis=at, copy=True)
        self._tables.json_as_text = begin.json == "s"
        self._snapshot = f"{begin.watermark}:{uuid4().hex[:8]}"
        if self._tells_rows:
            facts: dict[str, object]
            facts = {"snapshot": self._snapshot, "collections": [], "documents": 0, "whole": True}
            self._events.append(self._system("snapshot_started", self._snapshot, facts, at=at))

    def _completed(self, mark: str) -> Commit:
        at = self._place.millis
        if self._tells_rows:
            facts = {
                "snapshot": self._snapshot,
                "collections": self._tables.captured,
                "documents": self._place.ordinal,
                "whole": True,
            }
            self._events.append(self._system("snapshot_completed", self._snapshot, facts, at=at))
        self.position = ZeroPosition(
            scope=self._config.scope,
            watermark=mark,
            replica=mark,
            generation=self.position.generation,
            at=at,
            tables=self._tables.text(),
        )
        self._begin, self._lost, self._new = None, None, False
        self._copying, self.copied = False, True
        return self._commit(self._taken_events())

    # --- bookkeeping -----------------------------------------------------------------------------

    def _announced(self) -> Announced:
        return Announced(tables_of(self.position), teller=self._teller, scope=self._config.scope)

    def _begin_place(self, mark: str, *, replica: str, millis: int, copy: bool) -> None:
        name = f"{replica}:{mark}"
        self._place = Place(
            identity=f"{self.position.generation}:{name}{':copy' if copy else ''}",
            watermark=mark,
            millis=millis,
            transaction=None if copy else name,
        )

    def _taken_events(self) -> list[AnyEvent]:
        events, self._events = self._events, []
        return events

    def _forget(self) -> None:
        self._held.drop()
        self._begin, self._events = None, []

    def close(self) -> None:
        """Let go of what is held."""
        self._forget()

    def _commit(self, events: list[AnyEvent]) -> Commit:
        return Commit(source=self._source, position=self.position.text(), events=tuple(events))

    def _gap(self, why: str, *, until: str | None) -> AnyEvent:
        known = self.position
        facts = {"from": known.place, "to": until, "reason": "reset", "detail": why}
        word = "gap_ended" if known.gap_said and until is not None else "gap"
        return self._system(word, f"lost:{known.generation}:{known.place}:{until}", facts)

    def _system(
        self,
        operation: str,
        identity: str,
        facts: Mapping[str, object],
        *,
        at: int | None = None,
        table: str = "",
    ) -> AnyEvent:
        millis = self.position.at if at is None else at
        place = self.position.place
        return self._teller.system(
            operation, identity, position=place, millis=millis, facts=facts, table=table
        )

    def _undecodable(self, what: str) -> UndecodableError:
        return UndecodableError(
            source=self._source,
            what=what,
            position=f"after {self.position.place}",
            remedy="If a table alone is the cause, leave it out (`exclude`), which records a gap "
            "of it; else the server must be mended, or begun anew with another app_id.",
        )
