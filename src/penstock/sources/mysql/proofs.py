"""What proves that a server's history is the one that a position was read in (record 0039).

Numbers prove nothing: a server that is reset, set up anew or restored from an older disk gives them
again, under the same server_uuid. A binlog that it begins anew is of another second, and a
transaction of the same number is of another second, or elsewhere.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final, NamedTuple

import pymysql
from msgspec import structs

from penstock.mysql_causes import code_of
from penstock.sources.mysql.beginnings import ANONYMOUS, BEGINS, beginning
from penstock.sources.mysql.binlog import (
    HARMLESS,
    QUERIES,
    Checksums,
    Event,
    EventType,
    Gtid,
    MalformedEventError,
    query,
)
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    CANNOT_READ_BINLOG,
    Connected,
    Facts,
    abort,
    ask,
    binlogs,
    connect,
    discard,
)
from penstock.sources.mysql.file_places import BEGINNING, FilePlace
from penstock.sources.mysql.gtid_sets import GtidSet
from penstock.sources.mysql.holdings import Holdings
from penstock.sources.mysql.payloads import payload_events
from penstock.sources.mysql.positions import (
    Binlog,
    Domains,
    Flavour,
    MysqlPosition,
    Told,
    parse_gtids,
    told,
)
from penstock.sources.mysql.stream import BinlogStream, StreamEndedError, drawn_server_id

_NO_EVENT_THERE: Final = 1220
_CANDIDATES_MAX: Final = 8
_SAYS_NOTHING: Final = HARMLESS | {EventType.ROTATE, EventType.PREVIOUS_GTIDS}
"""What may come before a transaction."""


class Proof(Enum):
    """Of what history a server is."""

    OURS = "ours"
    ANOTHER = "another"
    NONE = "none"
    """Nothing that we know of ours is there any more."""


class Seen(NamedTuple):
    """What is at a place of a binlog."""

    begun: int
    """When the binlog was begun, in Unix seconds."""
    transaction: tuple[str, int] | None
    """The name of the transaction that begins there, and its second."""


class Found(NamedTuple):
    """A transaction of a server's."""

    name: str
    at: int
    """Unix seconds of its header."""
    moment: int
    """As a position has it."""


class Prover:
    """Looks into a server's binlogs, by connections of its own. Blocks; raises what the client
    library raises."""

    def __init__(
        self, source: str, config: MysqlSourceConfig, found: Facts, asking: Connected
    ) -> None:
        self._source = source
        self._config = config
        self._found = found
        self._asking = asking
        self._looking: Connected | None = None

    def abort(self) -> None:
        """Have whoever waits for an answer get an error; from any thread."""
        looking = self._looking
        if looking is not None:
            abort(looking)

    def founded(self, position: MysqlPosition, theirs: Holdings) -> MysqlPosition:
        """A position behind which nothing was read yet, with what will prove it."""
        position = structs.replace(position, binlog=self.newest_binlog())
        if position.gtids != theirs.end:
            return position
        found = [
            self._found_last(structs.replace(position, last=last), theirs)
            for last in _newest(position.flavour, theirs)
        ]
        last = max((one for one in found if one is not None), key=lambda one: one.at, default=None)
        if last is None:
            return position
        return structs.replace(position, last=last.name, at=last.at, moment=last.moment)

    def newest_binlog(self) -> Binlog | None:
        """The one that the server writes now."""
        name = next(reversed(binlogs(self._asking)), "")
        seen = self._seen(name) if name else None
        return None if seen is None else Binlog(name, seen.begun)

    def same_server(self, known: MysqlPosition, theirs: Holdings) -> Proof:
        """Of the server that the position was read from."""
        sizes = binlogs(self._asking)
        proofs: list[Proof] = []
        if known.flavour == "mysql_files":
            stands = FilePlace.parse(known.gtids)
            if sizes.get(stands.file, stands.offset) < stands.offset:
                return Proof.ANOTHER
        binlog = known.binlog
        if known.last and known.file in sizes:
            proofs.append(_proof(self._is_at_its_place(known)))
            if binlog is not None and binlog.file == known.file:
                binlog = None  # it was looked at with its transaction
        if binlog is not None and binlog.file in sizes:
            seen = self._seen(binlog.file)
            proofs.append(_proof(seen is not None and seen.begun == binlog.begun))
        if known.last and not known.file:
            proofs.append(self.by_last(known, theirs))
        if Proof.ANOTHER in proofs:
            return Proof.ANOTHER
        return Proof.OURS if Proof.OURS in proofs or known.binlog is None else Proof.NONE

    def has_last(self, known: MysqlPosition, theirs: Holdings) -> bool:
        """Whether a MySQL has our last transaction in a binlog, though it does not call it
        executed."""
        if known.flavour != "mysql" or not known.last:
            return False
        return self._found_last(known, theirs) is not None

    def by_last(self, known: MysqlPosition, theirs: Holdings) -> Proof:
        """By our last transaction alone, wherever it is: a server that took another's place keeps
        the seconds of its transactions."""
        found = self._found_last(known, theirs) if known.last else None
        if found is None:
            return Proof.OURS if known.binlog is None else Proof.NONE
        return _proof(not known.moment or found.moment == known.moment)

    def _found_last(self, known: MysqlPosition, theirs: Holdings) -> "Found | None":
        """Our last transaction, wherever it is; None if no binlog has it."""
        try:
            with self._stream() as stream:
                stream.begin(
                    self._found,
                    after=_all_but_last(known, theirs),
                    server_id=drawn_server_id(),
                    heartbeat_seconds=self._config.heartbeat_seconds,
                    once=True,
                )
                return _found(stream, known.last)
        except pymysql.MySQLError as error:
            if code_of(error) != CANNOT_READ_BINLOG:
                raise
            return None  # it is purged

    def _is_at_its_place(self, known: MysqlPosition) -> bool:
        """Whether the last transaction is still where it was read, in a binlog that was begun in
        the same second."""
        kept_back = self._is_kept_back(known)
        seen = self._seen(known.file, BEGINNING if kept_back else known.offset)
        if seen is None:
            return False
        binlog = known.binlog
        if binlog is not None and binlog.file == known.file and binlog.begun != seen.begun:
            return False
        if kept_back:
            return self._is_listed(known)
        return seen.transaction == (known.last, known.at)

    def _seen(self, file: str, offset: int = BEGINNING) -> Seen | None:
        """What is at a place; None where no event begins there."""
        try:
            with self._stream() as stream:
                stream.begin_at(self._found, file=file, offset=offset, server_id=drawn_server_id())
                return _next(stream, only_file=offset == BEGINNING)
        except MalformedEventError:
            return None
        except pymysql.MySQLError as error:
            if code_of(error) != CANNOT_READ_BINLOG:
                raise
            return None

    def _is_kept_back(self, known: MysqlPosition) -> bool:
        """Whether a MySQL sends nobody a transaction like our last: its gtid_mode was switched."""
        if known.flavour != "mysql_files":
            return False
        return self._found.gtid_mode == ("ON" if known.last.startswith(ANONYMOUS) else "OFF")

    def _is_listed(self, known: MysqlPosition) -> bool:
        """Whether a transaction like our last begins where ours did. Its moment is not listed."""
        try:
            rows = ask(
                self._asking,
                "SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1",
                known.file,
                known.offset,
            )
        except pymysql.MySQLError as error:
            if code_of(error) == _NO_EVENT_THERE:
                return False
            raise
        name = "ANONYMOUS" if known.last.startswith(ANONYMOUS) else known.last
        return any(name in str(row[5]) for row in rows)

    @contextmanager
    def _stream(self) -> Generator[BinlogStream]:
        connection = connect(
            self._source, self._config, read_seconds=max(self._config.connect_timeout, 1)
        )
        self._looking = connection
        try:
            stream = BinlogStream(connection)
            # It speaks while it looks for a transaction, too.
            stream.deadline(max(self._config.connect_timeout, self._config.deadline_seconds))
            yield stream
        finally:
            self._looking = None
            discard(connection)


def begun_at(stream: BinlogStream) -> int:
    """When a binlog was begun, in Unix seconds: its first event says."""
    return _next(stream, only_file=True).begun


def _next(stream: BinlogStream, *, only_file: bool = False) -> Seen:
    """What a stream begins with; its first transaction only where nothing else is before it."""
    checksums, begun = Checksums(), 0
    try:
        while True:
            for data in stream.read():
                event = checksums.event(data)
                if event.type == EventType.FORMAT_DESCRIPTION:
                    begun = event.timestamp or begun
                    if only_file and begun:
                        return Seen(begun, None)
                elif event.type in BEGINS:
                    return Seen(begun, (beginning(event, data).gtid, event.timestamp))
                elif event.type not in _SAYS_NOTHING:
                    return Seen(begun, None)
    except StreamEndedError:
        return Seen(begun, None)


def _proof(is_ours: bool) -> Proof:
    return Proof.OURS if is_ours else Proof.ANOTHER


def _found(stream: BinlogStream, name: str) -> Found | None:
    """The transaction of this name, if a stream begins with it."""
    checksums, second = Checksums(), -1
    with suppress(StreamEndedError):
        while True:
            for data in stream.read():
                event = checksums.event(data)
                if event.type in BEGINS:
                    if second >= 0 or beginning(event, data).gtid != name:
                        return Found(name, second, 0) if second >= 0 else None
                    second = event.timestamp
                elif second >= 0:
                    for one in _unpacked(event):
                        if _is_first(one):
                            return Found(name, second, one.timestamp)
    return Found(name, second, 0) if second >= 0 else None


def _unpacked(event: Event) -> Iterable[Event]:
    if event.type == EventType.TRANSACTION_PAYLOAD:
        return payload_events(event.body)
    return (event,)


def _is_first(event: Event) -> bool:
    """Whether an event has rows, or a statement that is not that of a beginning."""
    if event.type not in QUERIES:
        return event.type == EventType.TABLE_MAP
    said = query(event.body, compressed=event.type == EventType.QUERY_COMPRESSED)
    return said.text.strip().upper() != "BEGIN"


def _newest(flavour: Flavour, theirs: Holdings) -> list[str]:
    """Transactions that a server's binlogs may still have, the last of each who gave numbers; a few
    of them, where many did."""
    ours, before = told(flavour, theirs.end), told(flavour, theirs.before)
    if isinstance(ours, FilePlace) or isinstance(before, FilePlace):
        return []
    return [one for one in ours.newest() if not before.has(one)][:_CANDIDATES_MAX]


def _all_but_last(known: MysqlPosition, theirs: Holdings) -> Told:
    """All that a server or we have but our last transaction and, of MariaDB's, what follows in its
    domain."""
    if known.flavour == "mysql":
        # What waits for a replica (semi-synchronous replication) is not called executed yet.
        return GtidSet.parse(f"{theirs.end},{known.gtids}").without(known.last)
    gtid, domains = Gtid.parse(known.last), parse_gtids(theirs.end)
    domains.pop(gtid.domain, None)
    if gtid.sequence > 1:
        domains[gtid.domain] = gtid._replace(sequence=gtid.sequence - 1)
    return Domains(domains)
