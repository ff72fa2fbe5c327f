"""One reading of a server's binlog from a position on. Blocks, and starts no thread.

`begin`, then `step` again and again: each returns what there is to say. Whoever has an event loop
calls them in a thread, and `abort` from any other to have them return.
"""

import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple, TypeVar

import pymysql
import structlog
from msgspec import structs

from penstock.errors import (
    PenstockError,
    PositionLostError,
    SourceError,
    SourceUnavailableError,
    UndecodableError,
)
from penstock.event import AnyEvent, Commit, Fragment, SchemaEvent
from penstock.mysql_causes import code_of
from penstock.sources.mysql.asking import Asking
from penstock.sources.mysql.beginnings import BEGINS
from penstock.sources.mysql.binlog import (
    Checksums,
    Event,
    EventType,
    MalformedEventError,
    begun,
    gtid_of,
)
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    CANNOT_READ_BINLOG,
    Connected,
    Facts,
    abort,
    binlog_end,
    connect,
    discard,
    facts,
    logs_cascades,
    translated,
)
from penstock.sources.mysql.copier import Copier
from penstock.sources.mysql.copying import Name, Policy
from penstock.sources.mysql.described import shapes_now
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.following import Following
from penstock.sources.mysql.held import Undone
from penstock.sources.mysql.history import lost
from penstock.sources.mysql.holdings import ends, flavour_of, holdings
from penstock.sources.mysql.listening import Listener
from penstock.sources.mysql.losses import loss_of
from penstock.sources.mysql.positions import (
    Binlog,
    Flavour,
    MysqlPosition,
    Server,
    begun_at,
    without_domains,
)
from penstock.sources.mysql.proofs import Prover
from penstock.sources.mysql.replies import Replies, Reply
from penstock.sources.mysql.requirements import require, require_logged, require_tables
from penstock.sources.mysql.rescoping import rescoped
from penstock.sources.mysql.shapes import Shape
from penstock.sources.mysql.stream import BinlogStream
from penstock.sources.mysql.transactions import Transactions

logger = structlog.get_logger(__name__)
T = TypeVar("T")

_HEARTBEAT: Final = int(EventType.HEARTBEAT)
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
        self._replies: Replies | None = None
        """Where the server waits for us."""
        self._acknowledged: deque[str] = deque()
        """Positions that the log holds, and that were not looked at."""
        self._asks_behind: int | None = None
        """Behind how many commits that are durable the server is to be asked about its tables."""
        self._flow: Generator[Item] | None = None
        """What is still to be made of the events that were read, maybe of a file that is open."""
        self._beat = False
        """Whether one of them was a heartbeat."""
        self._heard = False
        """Whether there were any. What comes again moves no position, and may be a lot."""
        self._said = ""
        """The last position that was told."""
        self._said_at = 0.0
        self._as_of_place = "", 0
        """Of the last transaction whose time was told as that of all."""
        self._following = Following(patience_seconds=config.deadline_seconds)
        self._begins = False
        """Whether nothing was heard of the stream yet."""
        self._proving: Prover | None = None
        self._behind = False
        """Whether the server had at the last heartbeat what is not here."""
        self._beat_at = ""
        """Where the server reads, as its last heartbeat says."""
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
        flavour = flavour_of(found) if known is None else known.flavour
        require(self._source, self._config, found, asking, flavour=flavour)
        self._tables_required()
        server = Server(found.server_id, found.server_uid)
        events: list[AnyEvent] = []
        error: PenstockError | None = None
        if known is None:
            theirs = holdings(asking, found, flavour)
            gtids = theirs.before if self._config.start == "beginning" else theirs.end
            position = begun_at(server, gtids, self._config.scope, flavour)
            position = self._prover(found).founded(position, theirs)
            if self._config.start != "beginning":
                position = structs.replace(position, shapes=self._shapes_now())
            if self._config.start == "snapshot":
                position = structs.replace(position, copying=self._copier.everything())
        else:
            position = known
            why = self._lost(found, known)
            if why is not None:
                events, position, error = self._gap(found, known, why)
            if server != position.server:
                position = self._taken_over(found, position, server)
            scoped, position = rescoped(
                position, self._source, self._config, teller=self._teller, asking=self._asking
            )
            events += scoped
        self._as_of_place = position.file, position.offset
        self._transactions = Transactions(
            self._source,
            position,
            teller=self._teller,
            compile_table=lambda table: self._asking.compiled(table, self._reading.shapes),
            charset_of=self._asking.charset_of,
            characters=self._asking.characters,
            lowers=found.lower_case_table_names,
            undone=self._undone,
            origins=self._config.origin_rules,
            partial_rows=self._decodes_partial,
            misses_cascades=self._config.on_cascades == "halt" and not logs_cascades(asking),
            passes=self._config.pass_statements,
            changes_more=self._asking.changes_more,
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

    def _tables_required(self) -> None:
        """Look at what the captured tables are. Where the server's commits wait for us, one that
        waits already may have locked one of them: then behind the stream, which answers that."""
        if not self._config.semi_sync:
            self._asking.again(self._require_tables)
        elif not self._asking.unless_locked(self._require_tables, otherwise=False):
            self._asks_behind = 0

    def _shapes_now(self) -> tuple[Shape, ...]:
        """As the function. What is locked is asked for when it is met."""
        nothing: tuple[Shape, ...] = ()
        if not self._config.semi_sync:
            return self._asking.again(lambda by: shapes_now(by, self._config.scope))
        return self._asking.unless_locked(lambda by: shapes_now(by, self._config.scope), nothing)

    def _require_tables(self, asking: Connected) -> bool:
        """True; raises ConfigError."""
        require_tables(self._source, self._config, asking, warns=self._warns)
        return True

    def _require_logged(self, asking: Connected) -> None:
        require_logged(self._source, self._config, asking, warns=self._warns)

    def _open(self, found: Facts, position: MysqlPosition) -> None:
        config = self._config
        streaming = connect(self._source, config, read_seconds=config.connect_timeout)
        self._streaming = streaming
        if self._aborted:
            raise pymysql.err.OperationalError(2013, "aborted")
        self._stream = BinlogStream(streaming)
        self._replies = self._replying(found)
        if self._asks_behind is not None:
            self._asks_behind = 0  # nothing was said in this stream
        if self._replies is not None:
            self._asking.meet()
            if found.is_mariadb:  # MySQL takes the beginning of a stream for a reply
                self._owe_the_end(position, self._replies)
        self._stream.deadline(config.connect_timeout)
        self._stream.begin(
            found,
            after=position.needed(),
            server_id=self._server_id,
            heartbeat_seconds=config.heartbeat_seconds,
            statements=config.origin_rules.wants_text or self._decodes_partial,
            replies=self._replies is not None,
        )
        self._listener.begin(self._stream)
        self._begins = True

    def _replying(self, found: Facts) -> Replies | None:
        if not self._config.semi_sync:
            return None
        if found.semi_sync != "ON" and self._warns:
            logger.warning(
                "the server's commits do not wait for this source: it has that not enabled",
                source=self._source,
            )
        return Replies() if found.semi_sync else None

    def _owe_the_end(self, position: MysqlPosition, replies: Replies) -> None:
        """Where we stand at the end of the server's binlog, nothing comes whose reply would release
        a commit that waits from before."""
        asking = self._asking.connection()
        file, offset = binlog_end(asking)
        # Asked behind the place: all that is before it is among these, and may be less.
        if position.told().purged(facts(asking).gtid_end) is None:
            replies.begins_at(Reply(file, offset))

    # --- a lost position -------------------------------------------------------------------------

    def _gap(
        self, found: Facts, known: MysqlPosition, why: str
    ) -> tuple[list[AnyEvent], MysqlPosition, PenstockError | None]:
        """What is said of a loss, once, and where it goes on from; or the error to stop with."""
        mode, events = self._config.on_position_lost, list[AnyEvent]()
        asking = self._asking.connection()
        theirs = holdings(asking, found, known.flavour)
        loss = loss_of(known, until=theirs.end, why=why, mode=mode)
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
        if loss.halts:
            error = PositionLostError(source=self._source, position=known.gtids, detail=why)
            return events, loss.position, error
        return events, self._prover(found).founded(loss.position, theirs), None

    # --- what follows ----------------------------------------------------------------------------

    def step(self, asked: Sequence[Sequence[Name]] = ()) -> Step:
        """Wait for what follows, up to the server's next word, or the bell's.

        `asked` are copies that somebody waits for, each of tables (none: of all).
        """
        return self._ours(lambda: self._stepped(asked))

    @property
    def flavour(self) -> Flavour:
        """How places of this server are said; behind `begin`."""
        return self._reading.position.flavour

    def ring(self) -> None:
        """Have whoever waits in `step` return, to ask it for something; from any thread."""
        self._listener.ring()

    def acknowledge(self, position: str) -> None:
        """The log holds everything up to this position; from any thread."""
        if self._replies is not None:
            self._acknowledged.append(position)
            self.ring()

    def _reply(self, replies: Replies) -> None:
        """Tell the server what may be told to it; then ask it what is to be asked behind that."""
        assert self._stream is not None
        while self._acknowledged:
            replies.durable(self._acknowledged.popleft())
        due = replies.due()
        if due is not None:
            self._stream.reply(due.packed())
        behind = self._asks_behind
        if behind is None or replies.durable_count < behind:
            return
        if self._asking.unless_locked(self._require_tables, otherwise=False):
            self._asks_behind = None
        # Else another statement waits for our reply: again, behind it.

    def _stepped(self, asked: Sequence[Sequence[Name]]) -> Step:
        if self._replies is not None:
            self._reply(self._replies)
        if self._flow is None and not self._reading.open:
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
                self._beat, self._heard = False, bool(events)
                self._flow = self._flowing(events)
        except pymysql.MySQLError as error:
            if code_of(error) != CANNOT_READ_BINLOG:
                raise
            return self._refused(error)
        items: list[Item] = []
        try:
            # A part of a large transaction is handed on before the next is made.
            for item in self._flow:
                items.append(item)
                if isinstance(item, Fragment):
                    break
            else:
                self._flow = None
            if any(map(_redefines, items)):
                if self._replies is None:
                    self._asking.again(self._require_logged)
                else:
                    # The statement waits for our reply, and whoever asks about its table for it.
                    self._asks_behind = self._replies.said_count
        except PenstockError as error:
            return Step(items, error)
        if items and isinstance(items[-1], Commit):
            self._said, self._said_at = items[-1].position, time.monotonic()
        elif not self._reading.open and not items:
            moved = self._heard or self._reading.position.text() != self._said
            if self._beat or (moved and time.monotonic() - self._said_at >= SAY_SECONDS):
                # It is sent where the server has had nothing for us for so long.
                lost = self._compared() if self._beat else None
                items.append(self._say([], as_of_ms=self._as_of_ms()))
                if lost is not None:
                    found, known, why = lost
                    step = self._go_on_behind(found, known, why)
                    return step._replace(items=[*items, *step.items])
        return Step(items)

    def _compared(self) -> tuple[Facts, MysqlPosition, str] | None:
        """What is lost, if the server, which has nothing for us, writes a history that we do not
        read: of what, and why."""
        if self._replies is not None and self.flavour == "mysql_files":
            return None  # what waits for our reply may have locked the end of its binlogs
        found = self._asking.again(facts)
        known = self._reading.position
        if Server(found.server_id, found.server_uid) != known.server:
            raise SourceUnavailableError(
                f"{self._source}: another server answers than that whose binlog is read. Nothing "
                f"was skipped; a new session starts from the durable position and looks at it."
            )
        end, logged = self._asking.again(lambda by: ends(by, found, self.flavour))
        ours = without_domains(known, logged).told()
        lacks = ours.unknown(logged) is not None
        for name in self._reading.prepared:
            ours.add(name)
        overdue = self._following.is_overdue(
            ours, end=end, place=self._beat_at, now=time.monotonic()
        )
        self._behind = lacks or ours.is_behind(end)
        why = self._lost(found, known) if lacks or overdue else None
        if why is None and overdue:
            raise SourceUnavailableError(
                f"{self._source}: the server has transactions behind {known.gtids} and does not "
                f"send them. Its session is closed and a new one starts from the durable position."
            )
        return None if why is None else (found, known, why)

    def _lost(self, found: Facts, known: MysqlPosition) -> str | None:
        """As the function `lost`."""
        server = Server(found.server_id, found.server_uid)
        asking, prover = self._asking.connection(), self._prover(found)
        return lost(self._source, found, asking, known=known, server=server, prover=prover)

    def _prover(self, found: Facts) -> Prover:
        prover = Prover(self._source, self._config, found, self._asking.connection())
        self._proving = prover
        if self._aborted:
            raise pymysql.err.OperationalError(2013, "aborted")
        return prover

    def _taken_over(self, found: Facts, position: MysqlPosition, server: Server) -> MysqlPosition:
        """The position on a server that took the other's place, whose binlogs are others."""
        newest = self._prover(found).newest_binlog()
        return structs.replace(position, server=server, file="", offset=0, binlog=newest)

    def _as_of_ms(self) -> int | None:
        """Up to when all that the server has was told; None where nothing says so anew."""
        if self._beat:
            return None if self._behind else time.time_ns() // 1_000_000
        # A server that always has something for us, be it none of ours, sends no heartbeat.
        position = self._reading.position
        if (position.file, position.offset) == self._as_of_place:
            return None
        self._as_of_place = position.file, position.offset
        return position.at * 1000 or None

    def _flowing(self, events: list[bytes]) -> Generator[Item]:
        """What events come to, made as it is asked for; up to where a copy has to speak."""
        copier, parsed, taken = self._copier, self._checksums.event, self._reading.event
        # Nothing is read for a copy meanwhile: what is held can only be dropped.
        passed, holds, replies = copier.passed, copier.holds, self._replies
        try:
            for number, raw in enumerate(events):
                data = raw if replies is None else replies.opened(raw)
                event = parsed(data)
                if event.type == EventType.FORMAT_DESCRIPTION and event.timestamp:
                    self._require_proven(Binlog(self._reading.file, event.timestamp))
                if holds and event.type in BEGINS and self._stops(event, data):
                    self._listener.again(events[number:])
                    return
                for item in taken(event, data):
                    copier.told(item)
                    if replies is not None:
                        replies.said(item)
                    yield item
                if event.type == _HEARTBEAT:
                    self._beat = True
                    self._beat_at = f"{event.body!r}:{event.end}"
                passed(event, data)
                if replies is not None:
                    replies.passed(event)
        except MalformedEventError as error:
            raise self._damaged(error) from error

    def _require_proven(self, binlog: Binlog) -> None:
        """What the server sends is of the history that it was proven to have: it was looked at
        before it began, and could be reset between the two.

        Raises SourceUnavailableError: another session looks again.
        """
        first, self._begins = self._begins, False
        known = self._reading.position
        if known.binlog is None or known.binlog == binlog:
            return
        another = known.binlog.file == binlog.file
        if first and not another:
            another = self._lost(facts(self._asking.connection()), known) is not None
        if another:
            raise SourceUnavailableError(
                f"{self._source}: the server's binlogs are not those any more that were looked at. "
                f"Nothing was skipped; a new session starts from the durable position and looks "
                f"again."
            )

    def _stops(self, event: Event, data: bytes) -> bool:
        """Whether what is copied is to be said before this event, which begins a transaction."""
        of_mariadb = event.type == EventType.GTID
        return self._copier.stops(gtid_of(begun(event.body), data) if of_mariadb else None)

    def _copied(self) -> Commit | None:
        """The next word of a copy, between two transactions; None: the stream is to be read."""
        reading = self._reading
        found = self._copier.next(
            reading.position, comes_again=reading.comes_again, key_of=reading.shapes.key
        )
        if found is None:
            return None
        self._reading.copied(found.copying, found.keyed)
        return self._say(found.events)

    @property
    def _reading(self) -> Transactions:
        assert self._transactions is not None, "begin comes first"
        return self._transactions

    def _damaged(self, error: MalformedEventError) -> UndecodableError:
        return UndecodableError(
            source=self._source,
            what=str(error),
            position=f"after {self._reading.position.gtids}",
            remedy="If the binlog's file is damaged, its changes must be copied again; what "
            "was captured before is safe.",
        )

    def _refused(self, error: pymysql.MySQLError) -> Step:
        """The server does not read its binlog for us: is what we need gone meanwhile?"""
        known = self._reading.position
        found = facts(self._asking.connection())
        why = self._lost(found, known)
        if why is None or self._reading.open:
            raise SourceError(
                f"{self._source}: the server cannot read its binlog for us: {error.args[-1]}. "
                f"Capture has stopped after {known.gtids} and nothing was skipped."
            ) from None
        return self._go_on_behind(found, known, why)

    def _go_on_behind(self, found: Facts, known: MysqlPosition, why: str) -> Step:
        """Say a loss, and go on behind it in another stream, if that is wanted."""
        events, position, stop = self._gap(found, known, why)
        self._reading.standing(position)
        self._copier.lost()
        if stop is None:
            self._close_stream()
            self._open(found, position)
        return Step([self._say(events)], stop)

    def _say(self, events: Sequence[AnyEvent], *, as_of_ms: int | None = None) -> Commit:
        self._said, self._said_at = self._reading.position.text(), time.monotonic()
        said = Commit(
            source=self._source, position=self._said, events=tuple(events), as_of_ms=as_of_ms
        )
        if self._replies is not None:
            self._replies.said(said)
        return said

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
        if self._proving is not None:
            self._proving.abort()
        if self._streaming is not None:
            abort(self._streaming)
        self._copier.abort()
        self._listener.ring()

    def close(self) -> None:
        """Let go of the connections; harmless when there are none."""
        if self._flow is not None:
            self._flow.close()
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
