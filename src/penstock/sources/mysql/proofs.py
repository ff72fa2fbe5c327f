"""What proves that a server's history is the one that a position was read in (record 0039).

Numbers prove nothing: a server that is reset, set up anew or restored from an older disk gives them
again, under the same server_uuid. A binlog that it begins anew is of another second, and a
transaction of the same number is of another second, or elsewhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final, NamedTuple

import pymysql
from msgspec import structs

from penstock.mysql_causes import code_of
from penstock.sources.mysql.beginnings import ANONYMOUS, BEGINS, beginning
from penstock.sources.mysql.binlog import (
    HARMLESS,
    Checksums,
    EventType,
    Gtid,
    MalformedEventError,
)
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    CANNOT_READ_BINLOG,
    Connected,
    Facts,
    ask,
    binlogs,
    connect,
    discard,
)
from penstock.sources.mysql.file_places import BEGINNING, FilePlace
from penstock.sources.mysql.gtid_sets import GtidSet
from penstock.sources.mysql.holdings import Holdings
from penstock.sources.mysql.positions import (
    Binlog,
    Domains,
    Flavour,
    MysqlPosition,
    Told,
    parse_gtids,
)
from penstock.sources.mysql.stream import BinlogStream, StreamEndedError, drawn_server_id

_NO_EVENT_THERE: Final = 1220
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

    def founded(self, position: MysqlPosition, theirs: Holdings) -> MysqlPosition:
        """A position behind which nothing was read yet, with what will prove it."""
        newest = list(binlogs(self._asking))[-1]
        seen = self._seen(newest)
        binlog = None if seen is None else Binlog(newest, seen.begun)
        for last in _candidates(position.flavour, theirs) if position.gtids == theirs.end else ():
            second = self.second_of(last, position.flavour, theirs)
            if second is not None:
                return structs.replace(position, binlog=binlog, last=last, at=second)
        return structs.replace(position, binlog=binlog)

    def same_server(self, known: MysqlPosition, theirs: Holdings) -> Proof:
        """Of the server that the position was read from."""
        sizes = binlogs(self._asking)
        proofs = [Proof.OURS] if not known.last and known.binlog is None else []
        if known.flavour == "mysql_files":
            stands = FilePlace.parse(known.gtids)
            if sizes.get(stands.file, stands.offset) < stands.offset:
                return Proof.ANOTHER
        if known.binlog is not None and known.binlog.file in sizes:
            seen = self._seen(known.binlog.file)
            proofs.append(_proof(seen is not None and seen.begun == known.binlog.begun))
        if known.last and known.file in sizes:
            proofs.append(_proof(self._is_at_its_place(known)))
        elif known.last and not known.file:
            proofs.append(self.by_last(known, theirs))
        if Proof.ANOTHER in proofs:
            return Proof.ANOTHER
        return Proof.OURS if Proof.OURS in proofs else Proof.NONE

    def has_last(self, known: MysqlPosition, theirs: Holdings) -> bool:
        """Whether our last transaction is in a binlog, whatever the server says that it has."""
        return known.flavour != "mysql_files" and self.by_last(known, theirs) is Proof.OURS

    def by_last(self, known: MysqlPosition, theirs: Holdings) -> Proof:
        """By our last transaction alone, wherever it is: a server that took another's place keeps
        the seconds of its transactions."""
        if not known.last:
            return Proof.NONE
        second = self.second_of(known.last, known.flavour, theirs)
        return Proof.NONE if second is None else _proof(second == known.at)

    def second_of(self, name: str, flavour: Flavour, theirs: Holdings) -> int | None:
        """When a transaction was committed, in Unix seconds; None if no binlog has it."""
        after = _all_but(name, flavour, theirs)
        try:
            with self._stream() as stream:
                stream.begin(
                    self._found,
                    after=after,
                    server_id=drawn_server_id(),
                    heartbeat_seconds=self._config.heartbeat_seconds,
                    once=True,
                )
                found = _next(stream).transaction
        except pymysql.MySQLError as error:
            if code_of(error) != CANNOT_READ_BINLOG:
                raise
            return None  # it is purged
        return found[1] if found is not None and found[0] == name else None

    def _is_at_its_place(self, known: MysqlPosition) -> bool:
        """Whether the last transaction is still where it was read."""
        if self._is_kept_back(known):
            return self._is_listed(known)
        seen = self._seen(known.file, known.offset)
        return seen is not None and seen.transaction == (known.last, known.at)

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
    def _stream(self) -> Iterator[BinlogStream]:
        connection = connect(
            self._source, self._config, read_seconds=max(self._config.connect_timeout, 1)
        )
        try:
            stream = BinlogStream(connection)
            # It speaks while it looks for a transaction, too.
            stream.deadline(max(self._config.connect_timeout, self._config.deadline_seconds))
            yield stream
        finally:
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


def _candidates(flavour: Flavour, theirs: Holdings) -> list[str]:
    """Transactions that a server's binlogs may still have, one of each who gave numbers."""
    if flavour == "mysql":
        before = GtidSet.parse(theirs.before)
        return [one for one in GtidSet.parse(theirs.end).newest() if not before.has(one)]
    if flavour == "mysql_files":
        return []
    before_oldest = Domains(parse_gtids(theirs.before))
    return [str(one) for one in parse_gtids(theirs.end).values() if not before_oldest.has(str(one))]


def _all_but(name: str, flavour: Flavour, theirs: Holdings) -> Told:
    """All that a server has but one transaction and, of MariaDB's, what follows in its domain."""
    if flavour == "mysql":
        return GtidSet.parse(theirs.end).without(name)
    gtid, domains = Gtid.parse(name), parse_gtids(theirs.end)
    domains.pop(gtid.domain, None)
    if gtid.sequence > 1:
        domains[gtid.domain] = gtid._replace(sequence=gtid.sequence - 1)
    return Domains(domains)
