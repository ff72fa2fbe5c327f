"""Where a source stands: which server, and which of its transactions are behind us.

A place is always between two transactions, so resuming never cuts one (S5). Transactions of a
domain of MariaDB's are in order, and domains are interleaved in one binlog (S6): the last of each
is exactly what a replica tells a server, which then sends all that it has not told. MySQL is told
the set of all that a replica has (`gtid_sets`).
Source: the MariaDB documentation, "Global Transaction ID".
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct, field, structs

from penstock.errors import ConfigError, RequestError
from penstock.sources.mysql.binlog import Gtid
from penstock.sources.mysql.copying import Copying, begun_anew
from penstock.sources.mysql.file_places import FilePlace
from penstock.sources.mysql.gtid_sets import GtidSet
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.shapes import Kept, Shape

Flavour = Literal["mariadb", "mysql", "mysql_files"]
"""How a place is said: the last GTID of each domain; a set of GTIDs; a file, and a place in it."""
_VERSIONS: Final[dict[Flavour, int]] = {"mariadb": 1, "mysql": 2, "mysql_files": 2}
"""Of a position's text: 2 came with MySQL's, which who knows only 1 must not take for MariaDB's,
and 3 with `since`."""


def version_of(flavour: Flavour, since: str | None) -> int:
    """Of a position: the first that has all that is said."""
    return _VERSIONS[flavour] if since is None else 3


class Server(Struct, frozen=True, omit_defaults=True):
    """Who a server is. A replica that takes its place is another, with the same transactions."""

    id: int
    """Its server_id."""
    uid: str = ""
    """Its server_uuid (MySQL), or its server_uid, where it has one: of its host and port."""

    def __str__(self) -> str:
        return f"server_id {self.id}" + (f" ({self.uid})" if self.uid else "")


class Binlog(Struct, frozen=True):
    """A binlog of a server: the names are used again after a reset, and not in the same second."""

    file: str
    begun: int
    """When the server began it, in Unix seconds: its first event says."""


class MysqlPosition(Struct, frozen=True, omit_defaults=True):
    """Where a source stands: behind these transactions."""

    server: Server
    gtids: str
    """As the server writes them: the last of each domain, `0-1-5,1-2-7`, or the set of all,
    `uuid:1-5:7-9`. Empty: none yet. Without GTIDs, where they end: `mysql-bin.000003:1234`."""
    scope: Scope
    at: int = 0
    """Unix seconds of the last of them; 0 where that is not known."""
    last: str = ""
    """The last of them all, as it says itself."""
    moment: int = 0
    """Unix seconds of its first rows or statement, which replicas keep; 0: not known."""
    file: str = ""
    """The binlog that it is in,"""
    offset: int = 0
    """and where; empty and 0 where we only asked for it. By these another history under the same
    numbers is told from ours (record 0039)."""
    binlog: Binlog | None = None
    """The one that was read last, maybe to its end and without a transaction. None: written by a
    version that did not keep it."""
    gap_said: bool = False
    """Whether the log has a gap that begins here; capture stopped at it."""
    flavour: Flavour = "mariadb"
    shapes: tuple[Shape, ...] = ()
    """What is known here of tables that their TABLE_MAP does not say (record 0022)."""
    copying: Copying | None = None
    """How far a copy is."""
    since: str | None = None
    """Where the server must begin to send, for the oldest XA transaction that is prepared; None
    where none is, or a set of GTIDs leaves it out. Empty: it is the first of all."""
    since_at: int = 0
    """Unix seconds of its prepare."""
    version: int = field(default=1, name="v")

    def text(self) -> str:
        """As it is kept in the log."""
        shapes = self.shapes
        if isinstance(shapes, Kept):
            return _ENCODER.encode(structs.replace(self, shapes=shapes.encoded)).decode()
        return _ENCODER.encode(self).decode()

    def told(self) -> "Told":
        """The transactions that are behind it."""
        return told(self.flavour, self.gtids)

    def needed(self) -> "Told":
        """The transactions that the server need not have any more."""
        return told(self.flavour, self.gtids if self.since is None else self.since)


def parse_position(text: str) -> MysqlPosition:
    """The place that `text` says. Raises ConfigError for what this version did not write."""
    try:
        position = _DECODER.decode(text)
        ours = position.told()
        if position.last and not isinstance(ours, FilePlace):
            ours.has(position.last)
        position.needed()
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"not a position of a MySQL source ({error}). Nothing was captured. If the source's "
            f"name belonged to another kind of source before, give this one a name of its own."
        ) from error
    if position.version != version_of(position.flavour, position.since):
        raise ConfigError(
            f"this position is of version {position.version}, written by a newer Penstock; "
            f"nothing was captured. Run that version."
        )
    return position


def moved(source: str, position: str, *, before: str | None) -> str:
    """As `penstock.ports.Moves.moved`."""
    try:
        place = parse_position(position)
    except ConfigError as error:
        raise RequestError(
            f"{source}: that is no position of a MySQL source. Nothing was changed. Take one from "
            f"`penstock checkpoint show --json`."
        ) from error
    stood = None if before is None else _parsed(before)
    copying = begun_anew(place.copying, None if stood is None else stood.copying)
    return structs.replace(place, copying=copying, gap_said=False).text()


def is_copying(position: str) -> bool:
    """As `penstock.ports.Moves.is_copying`; False for the position of another kind of source."""
    known = _parsed(position)
    return known is not None and known.copying is not None


def _parsed(position: str) -> MysqlPosition | None:
    try:
        return parse_position(position)
    except ConfigError:
        return None


def all_gtids(text: str) -> list[Gtid]:
    """All of a list, which may have several of one domain. Raises ValueError."""
    return [Gtid.parse(one) for one in text.split(",") if one.strip()]


def parse_gtids(text: str) -> dict[int, Gtid]:
    """By domain, in order. Raises ValueError."""
    return {gtid.domain: gtid for gtid in sorted(all_gtids(text))}


def gtids_text(gtids: Iterable[Gtid]) -> str:
    """As the server writes them."""
    return ",".join(map(str, sorted(gtids)))


def purged(ours: dict[int, Gtid], before_oldest: dict[int, Gtid]) -> Gtid | None:
    """A transaction that we lack and the server does not hold any more; None if there is none (S7).

    `before_oldest` are the last transactions before its oldest binlog: what a domain has up to
    there is gone, so we must have it.
    """
    for domain, gone in before_oldest.items():
        mine = ours.get(domain)
        if mine is None or mine.sequence < gone.sequence:
            return gone
    return None


def unknown(ours: dict[int, Gtid], logged: Iterable[Gtid]) -> Gtid | None:
    """One of `ours` that the server never logged; None if there is none.

    `logged` are the last of every domain and server that it did. What is beyond them is of another
    history, or of this one before it was reset.
    """
    last = {(gtid.domain, gtid.server): gtid.sequence for gtid in logged}
    for mine in ours.values():
        if last.get((mine.domain, mine.server), 0) < mine.sequence:
            return mine
    return None


class Domains:
    """The last transaction of each of MariaDB's domains; grows."""

    def __init__(self, gtids: dict[int, Gtid]) -> None:
        self._names = {domain: str(gtid) for domain, gtid in gtids.items()}

    def add(self, name: str) -> None:
        """Take a transaction in, the next of its domain."""
        self._names[int(name[: name.index("-")])] = name

    def has(self, name: str) -> bool:
        """Whether a transaction is among those up to the last ones."""
        gtid = Gtid.parse(name)
        last = self._names.get(gtid.domain)
        return last is not None and Gtid.parse(last).sequence >= gtid.sequence

    def newest(self) -> list[str]:
        """The last of each domain."""
        return list(self._names.values())

    def text(self) -> str:
        """As the server writes them."""
        names = self._names
        if len(names) == 1:
            return next(iter(names.values()))
        return ",".join(names[domain] for domain in sorted(names))

    def is_behind(self, end: str) -> bool:
        """Whether a server whose domains end there has more."""
        return purged(parse_gtids(self.text()), parse_gtids(end)) is not None

    def purged(self, before: str) -> str | None:
        """As the function `purged`, of a server's lists."""
        gone = purged(parse_gtids(self.text()), parse_gtids(before))
        return None if gone is None else str(gone)

    def unknown(self, logged: str) -> str | None:
        """As the function `unknown`, of a server's lists."""
        strange = unknown(parse_gtids(self.text()), all_gtids(logged))
        return None if strange is None else str(strange)


Told = Domains | GtidSet | FilePlace
"""The transactions that are behind us."""


def told(flavour: Flavour, gtids: str) -> Told:
    """What a server of this kind writes. Raises ValueError."""
    if flavour == "mysql":
        return GtidSet.parse(gtids)
    return FilePlace.parse(gtids) if flavour == "mysql_files" else Domains(parse_gtids(gtids))


def without_domains(position: MysqlPosition, logged: str) -> MysqlPosition:
    """A position of MariaDB's without the domains that the server has nothing of any more: once no
    binlog holds one, it may be deleted (FLUSH BINARY LOGS DELETE_DOMAIN_ID). As it is where none
    would be left, and of MySQL's."""
    if position.flavour != "mariadb":
        return position
    there = {gtid.domain for gtid in all_gtids(logged)}

    def left(gtids: str) -> str:
        return gtids_text(g for g in parse_gtids(gtids).values() if g.domain in there)

    gtids = left(position.gtids)
    since = None if position.since is None else left(position.since)
    return structs.replace(position, gtids=gtids, since=since) if gtids else position


def begun_at(server: Server, gtids: str, scope: Scope, flavour: Flavour) -> MysqlPosition:
    """Behind these transactions, of which no more is known."""
    version = _VERSIONS[flavour]
    return MysqlPosition(server, gtids, scope, flavour=flavour, version=version)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(MysqlPosition)
