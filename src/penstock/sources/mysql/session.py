"""One reading of a server's binlog from a position on. Blocks, and starts no thread.

`begin`, then `step` again and again: each returns what there is to say. Whoever has an event loop
calls them in a thread, and `abort` from any other to have them return.
"""

import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pymysql
import structlog
from msgspec import json, structs, to_builtins

from penstock.errors import (
    ConfigError,
    PenstockError,
    PositionLostError,
    SourceChangedError,
    SourceError,
    UndecodableError,
)
from penstock.event import AnyEvent, Commit, Fragment, SchemaEvent
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
    GONE,
    Connected,
    Facts,
    abort,
    binlogs,
    cascading,
    charsets,
    code_of,
    connect,
    discard,
    facts,
    gtids_before,
    obstacles,
    oldest_binlog,
    tables,
    translated,
    virtual_columns,
)
from penstock.sources.mysql.copier import Copier
from penstock.sources.mysql.copying import (
    Copying,
    Name,
    Policy,
    with_tables,
    without,
)
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.history import is_ours
from penstock.sources.mysql.listening import Listener
from penstock.sources.mysql.losses import loss_of
from penstock.sources.mysql.positions import (
    MysqlPosition,
    Server,
    all_gtids,
    parse_gtids,
    purged,
    unknown,
)
from penstock.sources.mysql.rows import CompiledTable, compile_table
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.stream import BinlogStream
from penstock.sources.mysql.tables import Table
from penstock.sources.mysql.transactions import Transactions, Undone

logger = structlog.get_logger(__name__)
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
        self._asking: Connected | None = None
        self._streaming: Connected | None = None
        self._stream: BinlogStream | None = None
        self._transactions: Transactions | None = None
        self._charsets: dict[int, str] = {}
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
        asking = self._ask_by()
        found = facts(asking)
        self._require(found)
        self._require_logged(asking)
        server = Server(found.server_id, found.server_uid)
        events: list[AnyEvent] = []
        error: PenstockError | None = None
        if known is None:
            gtids = self._start(asking, found)
            position = MysqlPosition(server, gtids, self._config.scope)
            if self._config.start == "snapshot":
                position = structs.replace(position, copying=self._copier.everything())
        else:
            position = known
            lost = self._lost(asking, found, known, server)
            if lost is not None:
                events, position, error = self._gap(found, known, lost)
            position = structs.replace(position, server=server)
            scoped, position = self._rescoped(position)
            events += scoped
        self._transactions = Transactions(
            self._source,
            position,
            teller=self._teller,
            compile_table=self._compiled,
            charset_of=self._charset_of,
            lowers=found.lower_case_table_names,
            undone=self._undone,
            policy=Policy(
                new=self._config.start == "snapshot",
                lost=self._config.on_position_lost == "snapshot",
            ),
        )
        if error is None:
            self._open(found, position)
        return Step([self._say(events)], error)

    def _require(self, found: Facts) -> None:
        unfit = obstacles(found)
        if unfit:
            why, remedy = unfit[0]
            raise ConfigError(
                f"{self._source}: {why}. Nothing was captured, and nothing was skipped. What to "
                f"do: {remedy}."
            )

    def _require_logged(self, asking: Connected) -> None:
        """Have every change of the captured tables in the binlog, or hear that it need not be."""
        if self._config.on_cascades == "ignore" and not self._warns:
            return
        cascades = cascading(asking, self._config.scope)
        if not cascades:
            return
        if self._config.on_cascades == "halt":
            raise ConfigError(
                f"{self._source}: a foreign key changes rows of {', '.join(cascades[:10])} by "
                f"itself (ON DELETE CASCADE, SET NULL), and the server writes that to no binlog: "
                f"these changes would be missed. What was captured before is safe. Have the "
                f"application change these rows (ON DELETE RESTRICT), exclude the tables, or set "
                f"on_cascades = 'ignore' to capture them without these changes."
            )
        logger.warning(
            "foreign keys change rows of these tables by themselves, and that is in no binlog",
            source=self._source,
            tables=cascades,
        )

    def _start(self, asking: Connected, found: Facts) -> str:
        if self._config.start != "beginning":
            return found.gtid_binlog_pos
        oldest = oldest_binlog(asking)
        return "" if oldest is None else gtids_before(asking, oldest)

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
            after=position.gtids,
            server_id=self._server_id,
            heartbeat_seconds=config.heartbeat_seconds,
        )
        self._listener.begin(self._stream)

    # --- a lost position -------------------------------------------------------------------------

    def _lost(
        self, asking: Connected, found: Facts, known: MysqlPosition, server: Server
    ) -> str | None:
        """Why the server cannot go on from `known`, in words; None if it can (S7).

        Raises SourceChangedError where another server answers that has another history (S6). A
        replica that takes the server's place has ours, and is gone on from.
        """
        ours = parse_gtids(known.gtids)
        strange = unknown(ours, all_gtids(found.gtid_binlog_state))
        if strange is not None:
            if server != known.server:
                raise SourceChangedError(
                    source=self._source,
                    expected=f"{known.server}, which had the transaction {strange}",
                    found=f"{server}, which never had it",
                )
            return f"the server was reset: it has no transaction {strange}"
        oldest = oldest_binlog(asking)
        before = "" if oldest is None else gtids_before(asking, oldest)
        gone = purged(ours, parse_gtids(before))
        if gone is not None:
            return f"the server has purged its binlogs up to {gone}"
        if server != known.server:
            logger.warning(
                "another server has our transactions, and is gone on from",
                source=self._source,
                before=str(known.server),
                after=str(server),
            )
            return None
        if known.file in binlogs(asking) and not is_ours(self._source, self._config, found, known):
            return f"the server was set up anew: its transaction {known.last} is another"
        return None

    def _gap(
        self, found: Facts, known: MysqlPosition, why: str
    ) -> tuple[list[AnyEvent], MysqlPosition, PenstockError | None]:
        """What is said of a loss, once, and where it goes on from; or the error to stop with."""
        mode, events = self._config.on_position_lost, list[AnyEvent]()
        loss = loss_of(known, until=found.gtid_binlog_pos, why=why, mode=mode)
        if loss.facts is not None:
            word, identity = "gap_ended" if known.gap_said else "gap", f"lost:{known.gtids}"
            tell = partial(self._teller.system, position=known.gtids, seconds=known.at)
            events.append(tell(word, f"{identity}:{loss.facts['to']}", facts=loss.facts))
        lost = PositionLostError(source=self._source, position=known.gtids, detail=why)
        return events, loss.position, lost if loss.halts else None

    # --- a change of scope -----------------------------------------------------------------------

    def _rescoped(self, position: MysqlPosition) -> tuple[list[AnyEvent], MysqlPosition]:
        """What is said of a scope that is not that of the position, and the position with ours.

        The stream goes on where it was: changes of tables that are new to the scope are captured
        from there on. What they held before is copied if `start` says so.
        """
        before, after = position.scope, self._config.scope
        if before == after:
            return [], position
        there = self._again(lambda by: tables(by, Scope()))
        added = [one for one in there if one in after and one not in before]
        removed = [one for one in there if one in before and one not in after]
        copied = added if self._config.start == "snapshot" else []
        identity = f"{position.gtids}:{json.encode((before, after)).decode()}"
        tell = partial(self._teller.system, position=position.gtids, seconds=position.at)
        facts_: dict[str, object] = {
            "before": to_builtins(before),
            "after": to_builtins(after),
            "added": [".".join(one) for one in added],
            "removed": [".".join(one) for one in removed],
            "copied": bool(copied),
            "since": position.gtids,
        }
        events: list[AnyEvent] = [tell("scope_changed", identity, facts=facts_)]
        for table in removed:
            gap: dict[str, object] = {"from": position.gtids, "to": None, "reason": "scope"}
            events.append(tell("gap", f"scope:{identity}", facts=gap, table=table))
        if added and not copied:
            logger.warning(
                "tables are captured that were not; what they held before is not copied",
                source=self._source,
                tables=[".".join(one) for one in added],
            )
        copying = without(position.copying, after)
        if copied:
            copying = with_tables(copying, copied, seconds=self._copier.seconds())
        elif added and copying is not None:
            copying = structs.replace(copying, whole=False)
        return events, structs.replace(position, scope=after, copying=copying)

    # --- what follows ----------------------------------------------------------------------------

    def step(self, asked: Sequence[Sequence[Name]] = ()) -> Step:
        """Wait for what follows, up to the server's next word, or the bell's.

        `asked` are copies that somebody waits for, each of tables (none: of all).
        """
        return self._ours(lambda: self._stepped(asked))

    def ring(self) -> None:
        """Have whoever waits in `step` return, to ask it for something; from any thread."""
        self._listener.ring()

    def _stepped(self, asked: Sequence[Sequence[Name]]) -> Step:
        if not self._reading.open:
            begun = bool(asked) and not self._copier.reading
            if begun:
                position = self._reading.position
                self._stand(self._copier.asked(position.copying, asked))
            said = self._copied()
            if said is not None or begun:
                return Step([said or self._say([])], begun=begun)
        assert self._stream is not None
        try:
            events = self._listener.hear(self._stream, seconds_max=self._copier.wait_seconds)
        except pymysql.MySQLError as error:
            if code_of(error) != CANNOT_READ_BINLOG:
                raise
            return self._refused(error)
        items: list[Item] = []
        beat = False
        try:
            for number, data in enumerate(events):
                event = self._parsed(data)
                if event.type == EventType.GTID and self._copier.stops(gtid_of(event, data)):
                    self._listener.again(events[number:])
                    break
                beat = beat or event.type == EventType.HEARTBEAT
                told = self._reading.event(event, data)
                self._copier.passed(event)
                self._copier.told(told)
                items += told
            if any(_redefines(item) for item in items):
                self._again(self._require_logged)
        except PenstockError as error:
            return Step(items, error)
        if items and isinstance(items[-1], Commit):
            self._said, self._said_at = items[-1].position, time.monotonic()
        elif not self._reading.open and not items:
            moved = self._reading.position.text() != self._said
            if beat or (moved and time.monotonic() - self._said_at >= SAY_SECONDS):
                items.append(self._say([]))
        return Step(items)

    def _copied(self) -> Commit | None:
        """The next word of a copy, between two transactions; None: the stream is to be read."""
        found = self._copier.next(self._reading.position)
        if found is None:
            return None
        self._stand(found.copying)
        return self._say(found.events)

    def _stand(self, copying: Copying | None) -> None:
        position = structs.replace(self._reading.position, copying=copying)
        self._reading.standing(position)

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
        asking = self._ask_by()
        known = self._reading.position
        found = facts(asking)
        lost = self._lost(asking, found, known, Server(found.server_id, found.server_uid))
        if lost is None or self._reading.open:
            raise SourceError(
                f"{self._source}: the server cannot read its binlog for us: {error.args[-1]}. "
                f"Capture has stopped after {known.gtids} and nothing was skipped."
            ) from None
        events, position, stop = self._gap(found, known, lost)
        self._reading.standing(position)
        if stop is None:
            self._close_stream()
            self._open(found, position)
        return Step([self._say(events)], stop)

    def _say(self, events: Sequence[AnyEvent]) -> Commit:
        self._said, self._said_at = self._reading.position.text(), time.monotonic()
        return Commit(source=self._source, position=self._said, events=tuple(events))

    # --- what is asked beside the stream ---------------------------------------------------------

    def _compiled(self, table: Table) -> CompiledTable:
        self._learn({column.collation for column in table.columns})
        virtual = self._again(lambda by: virtual_columns(by, table.database, table.name))
        return compile_table(table, self._charsets, without=virtual)

    def _charset_of(self, collation: int) -> str:
        self._learn({collation})
        return self._charsets.get(collation, "")

    def _learn(self, collations: set[int]) -> None:
        unknown_ones = collations - self._charsets.keys()
        self._charsets |= self._again(lambda by: charsets(by, unknown_ones))

    def _again(self, question: Callable[[Connected], T]) -> T:
        """Ask; by another connection if this one was idle for too long."""
        try:
            return question(self._ask_by())
        except pymysql.MySQLError as error:
            if code_of(error) not in GONE:
                raise
            self._close_asking()
            return question(self._ask_by())

    def _ask_by(self) -> Connected:
        if self._asking is None:
            config = self._config
            seconds = max(config.connect_timeout, 1)
            self._asking = connect(self._source, config, read_seconds=seconds)
        return self._asking

    def _ours(self, act: Callable[[], T]) -> T:
        """What `act` returns; what the client library raises, in our words."""
        try:
            return act()
        except (pymysql.MySQLError, OSError, ssl.SSLError) as error:
            raise translated(self._source, self._config, error) from None

    # --- the end ---------------------------------------------------------------------------------

    def abort(self) -> None:
        """Have whoever waits in `begin` or `step` return with an error; from any thread."""
        self._aborted = True
        for connection in (self._asking, self._streaming):
            if connection is not None:
                abort(connection)
        self._copier.abort()
        self._listener.ring()

    def close(self) -> None:
        """Let go of the connections; harmless when there are none."""
        self._close_stream()
        self._close_asking()
        self._copier.close()
        self._listener.close()

    def _close_stream(self) -> None:
        streaming, self._streaming, self._stream = self._streaming, None, None
        if streaming is not None:
            discard(streaming)

    def _close_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            discard(asking)


def _redefines(item: Item) -> bool:
    """Whether it says that a captured table has changed."""
    return any(isinstance(event, SchemaEvent) for event in item.events)
