"""One reading of a server's binlog from a position on. Blocks, and starts no thread.

`begin`, then `step` again and again: each returns what there is to say. Whoever has an event loop
calls them in a thread, and `abort` from any other to have them return.
"""

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import pymysql
from msgspec import structs

from penstock.errors import PenstockError, PositionLostError, SourceError, UndecodableError
from penstock.event import AnyEvent, Commit, Fragment, SchemaEvent
from penstock.sources.mysql.asking import Asking
from penstock.sources.mysql.binlog import (
    Checksums,
    Event,
    EventType,
    MalformedEventError,
    gtid_of,
)
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    CANNOT_READ_BINLOG,
    Connected,
    Facts,
    abort,
    code_of,
    connect,
    discard,
    facts,
    translated,
)
from penstock.sources.mysql.copier import Copier
from penstock.sources.mysql.copying import Name, Policy
from penstock.sources.mysql.described import shapes_now
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.history import lost
from penstock.sources.mysql.holdings import flavour_of, holdings
from penstock.sources.mysql.listening import Listener
from penstock.sources.mysql.losses import loss_of
from penstock.sources.mysql.positions import MysqlPosition, Server, begun_at
from penstock.sources.mysql.requirements import require, require_logged
from penstock.sources.mysql.rescoping import rescoped
from penstock.sources.mysql.stream import BinlogStream
from penstock.sources.mysql.transactions import Transactions, Undone

T = TypeVar("T")

SAY_SECONDS: Final = 1.0
"""Where nothing that passes is captured, the position is told so often."""

Item = Commit | Fragment


class Step(NamedTuple):
    """What there is to say."""

    items: list[Item]
    error: PenstockError | None = None
    """To be raised behind the items."""
    begun: bool = False
    """Whether the copies that were asked for are under way from here on."""


class Session:
    """Reads from one position on."""

    def __init__(
        self,
        source: str,
        config: MysqlSourceConfig,
        *,
        server_id: int,
        undone: Undone,
        warns: bool = False,
    ) -> None:
        self._source = source
        self._config = config
        self._server_id = server_id
        self._warns = warns
        self._undone = undone
        self._teller = Teller(source, tenant=config.tenant)
        self._copier = Copier(source, config, self._teller)
        self._listener = Listener(source, silence_seconds_max=config.deadline_seconds)
        self._checksums = Checksums()
        self._asking = Asking(source, config)
        self._streaming: Connected | None = None
        self._stream: BinlogStream | None = None
        self._transactions: Transactions | None = None
        self._flow: Iterator[Item] | None = None
        """What is still to be made of the events that were read."""
        self._beat = False
        """Whether one of them was a heartbeat."""
        self._said = ""
        """The last position that was told."""
        self._said_at = 0.0
        self._aborted = False

    # --- the start -------------------------------------------------------------------------------

    def begin(self, known: MysqlPosition | None) -> Step:
        """Take up `known`, or what `start` says.

        Raises ConfigError for a server that cannot be captured, SourceChangedError for a position
        of another one.
        """
        return self._ours(lambda: self._begun(known))

    def _begun(self, known: MysqlPosition | None) -> Step:
        asking = self._asking.connection()
        found = facts(asking)
        require(self._source, self._config, found, asking, warns=self._warns)
        server = Server(found.server_id, found.server_uid)
        events: list[AnyEvent] = []
        error: PenstockError | None = None
        if known is None:
            flavour = flavour_of(found)
            theirs = holdings(asking, found, flavour)
            gtids = theirs.before if self._config.start == "beginning" else theirs.end
            position = begun_at(server, gtids, self._config.scope, flavour)
            if self._config.start != "beginning":
                position = structs.replace(position, shapes=shapes_now(asking, position.scope))
            if self._config.start == "snapshot":
                position = structs.replace(position, copying=self._copier.everything())
        else:
            position = known
            why = lost(self._source, self._config, found, asking, known=known, server=server)
            if why is not None:
                events, position, error = self._gap(found, known, why)
            position = structs.replace(position, server=server)
            scoped, position = rescoped(
                position, self._source, self._config, teller=self._teller, asking=self._asking
            )
            events += scoped
        self._transactions = Transactions(
            self._source,
            position,
            teller=self._teller,
            compile_table=lambda table: self._asking.compiled(table, self._reading.shapes),
            charset_of=self._asking.charset_of,
            lowers=found.lower_case_table_names,
            undone=self._undone,
            origins=self._config.origin_rules,
            partial_rows=self._decodes_partial,
            policy=Policy(
                new=self._config.start == "snapshot",
                lost=self._config.on_position_lost == "snapshot",
            ),
        )
        if error is None:
            self._open(found, position)
        return Step([self._say(events)], error)

    @property
    def _decodes_partial(self) -> bool:
        return self._config.on_partial_rows == "decode"

    def _require_logged(self, asking: Connected) -> None:
        require_logged(self._source, self._config, asking, warns=self._warns)

    def _open(self, found: Facts, position: MysqlPosition) -> None:
        config = self._config
        streaming = connect(self._source, config, read_seconds=config.connect_timeout)
        self._streaming = streaming
        if self._aborted:
            raise pymysql.err.OperationalError(2013, "aborted")
        self._stream = BinlogStream(streaming)
        self._stream.deadline(config.connect_timeout)
        self._stream.begin(
            found,
            after=position.told(),
            server_id=self._server_id,
            heartbeat_seconds=config.heartbeat_seconds,
            statements=config.origin_rules.wants_text or self._decodes_partial,
        )
        self._listener.begin(self._stream)

    # --- a lost position -------------------------------------------------------------------------

    def _gap(
        self, found: Facts, known: MysqlPosition, why: str
    ) -> tuple[list[AnyEvent], MysqlPosition, PenstockError | None]:
        """What is said of a loss, once, and where it goes on from; or the error to stop with."""
        mode, events = self._config.on_position_lost, list[AnyEvent]()
        end = holdings(self._asking.connection(), found, known.flavour).end
        loss = loss_of(known, until=end, why=why, mode=mode)
        if loss.facts is not None:
            events.append(
                self._teller.system(
                    "gap_ended" if known.gap_said else "gap",
                    f"lost:{known.gtids}:{loss.facts['to']}",
                    position=known.gtids,
                    seconds=known.at,
                    facts=loss.facts,
                )
            )
        error = PositionLostError(source=self._source, position=known.gtids, detail=why)
        return events, loss.position, error if loss.halts else None

    # --- what follows ----------------------------------------------------------------------------

    def step(self, asked: Sequence[Sequence[Name]] = ()) -> Step:
        """Wait for what follows, up to the server's next word, or the bell's.

        `asked` are copies that somebody waits for, each of tables (none: of all).
        """
        return self._ours(lambda: self._stepped(asked))

    @property
    def copies(self) -> bool:
        """Whether tables of this server can be copied; behind `begin`."""
        return self._reading.position.flavour == "mariadb"

    def ring(self) -> None:
        """Have whoever waits in `step` return, to ask it for something; from any thread."""
        self._listener.ring()

    def _stepped(self, asked: Sequence[Sequence[Name]]) -> Step:
        if not self._reading.open:
            begun = bool(asked) and not self._copier.reading
            if begun:
                position = self._reading.position
                self._reading.copied(self._copier.asked(position.copying, asked))
            said = self._copied()
            if said is not None or begun:
                return Step([said or self._say([])], begun=begun)
        assert self._stream is not None
        try:
            if self._flow is None:
                wait = self._copier.wait_seconds
                events = self._listener.hear(self._stream, seconds_max=wait)
                self._beat, self._flow = False, self._flowing(events)
        except pymysql.MySQLError as error:
            if code_of(error) != CANNOT_READ_BINLOG:
                raise
            return self._refused(error)
        items: list[Item] = []
        try:
            # A part of a large transaction is handed on before the next is made.
            while not (items and isinstance(items[-1], Fragment)):
                item = next(self._flow, None)
                if item is None:
                    self._flow = None
                    break
                items.append(item)
            if any(_redefines(item) for item in items):
                self._asking.again(self._require_logged)
        except PenstockError as error:
            return Step(items, error)
        if items and isinstance(items[-1], Commit):
            self._said, self._said_at = items[-1].position, time.monotonic()
        elif not self._reading.open and not items:
            moved = self._reading.position.text() != self._said
            if self._beat or (moved and time.monotonic() - self._said_at >= SAY_SECONDS):
                items.append(self._say([]))
        return Step(items)

    def _flowing(self, events: list[bytes]) -> Iterator[Item]:
        """What events come to, made as it is asked for; up to where a copy has to speak."""
        for number, data in enumerate(events):
            event = self._parsed(data)
            if event.type == EventType.GTID and self._copier.stops(gtid_of(event, data)):
                self._listener.again(events[number:])
                return
            self._beat = self._beat or event.type == EventType.HEARTBEAT
            for item in self._reading.event(event, data):
                self._copier.told(item)
                yield item
            self._copier.passed(event)

    def _copied(self) -> Commit | None:
        """The next word of a copy, between two transactions; None: the stream is to be read."""
        found = self._copier.next(self._reading.position)
        if found is None:
            return None
        self._reading.copied(found.copying)
        return self._say(found.events)

    @property
    def _reading(self) -> Transactions:
        assert self._transactions is not None, "begin comes first"
        return self._transactions

    def _parsed(self, data: bytes) -> Event:
        try:
            return self._checksums.event(data)
        except MalformedEventError as error:
            raise UndecodableError(
                source=self._source,
                what=str(error),
                position=f"after {self._reading.position.gtids}",
                remedy="If the binlog's file is damaged, its changes must be copied again; what "
                "was captured before is safe.",
            ) from error

    def _refused(self, error: pymysql.MySQLError) -> Step:
        """The server does not read its binlog for us: is what we need gone meanwhile?"""
        asking = self._asking.connection()
        known = self._reading.position
        found = facts(asking)
        server = Server(found.server_id, found.server_uid)
        why = lost(self._source, self._config, found, asking, known=known, server=server)
        if why is None or self._reading.open:
            raise SourceError(
                f"{self._source}: the server cannot read its binlog for us: {error.args[-1]}. "
                f"Capture has stopped after {known.gtids} and nothing was skipped."
            ) from None
        events, position, stop = self._gap(found, known, why)
        self._reading.standing(position)
        if stop is None:
            self._close_stream()
            self._open(found, position)
        return Step([self._say(events)], stop)

    def _say(self, events: Sequence[AnyEvent]) -> Commit:
        self._said, self._said_at = self._reading.position.text(), time.monotonic()
        return Commit(source=self._source, position=self._said, events=tuple(events))

    # --- the end ---------------------------------------------------------------------------------

    def _ours(self, act: Callable[[], T]) -> T:
        """What `act` returns; what the client library raises, in our words."""
        try:
            return act()
        except (pymysql.MySQLError, OSError, ssl.SSLError) as error:
            raise translated(self._source, self._config, error) from None

    def abort(self) -> None:
        """Have whoever waits in `begin` or `step` return with an error; from any thread."""
        self._aborted = True
        self._asking.abort()
        if self._streaming is not None:
            abort(self._streaming)
        self._copier.abort()
        self._listener.ring()

    def close(self) -> None:
        """Let go of the connections; harmless when there are none."""
        if self._transactions is not None:
            self._transactions.close()
        self._close_stream()
        self._asking.close()
        self._copier.close()
        self._listener.close()

    def _close_stream(self) -> None:
        streaming, self._streaming, self._stream = self._streaming, None, None
        if streaming is not None:
            discard(streaming)


def _redefines(item: Item) -> bool:
    """Whether it says that a captured table has changed."""
    return SchemaEvent in map(type, item.events)
