"""Where a stream stands among its transactions, and what it sends a second time. Pure.

An XA transaction that is prepared is behind us, and its rows are not told. A set of GTIDs leaves it
out. The last of each domain (MariaDB), or a place in a file, cannot: such a position also says from
where the server must send again (`since`), which is where the oldest that is still prepared begins.
What comes from there on was told, up to the position; only what prepares is taken up once more.
"""

from typing import Any

from msgspec import structs

from penstock.sources.mysql.binlog import Gtid, MalformedEventError
from penstock.sources.mysql.file_places import FilePlace
from penstock.sources.mysql.positions import (
    Binlog,
    Domains,
    MysqlPosition,
    parse_gtids,
    version_of,
)


class Prepared:
    """What a position says of the oldest transaction that is still prepared."""

    def __init__(self, since: str | None = None, seconds: int = 0) -> None:
        self.since = since
        """Where the server must begin to send it; None where it sends it by itself."""
        self.seconds = seconds
        """Of its prepare: its binlog must not be purged."""


NOTHING_PREPARED = Prepared()


class Standing:
    """The position behind the last transaction that ended, as a stream moves it on."""

    def __init__(self, position: MysqlPosition) -> None:
        self.position = position
        self._gtids = position.told()
        self._again = _again(position)
        self.in_files = position.flavour == "mysql_files"
        """Whether places are said by files."""
        self.reaches_back = position.flavour != "mysql"
        """Whether a position is behind what is prepared, and no set that leaves it out."""

    # --- what begins -----------------------------------------------------------------------------

    def repeats(self, name: str) -> bool:
        """Whether the transaction that begins now, of this name, was told before."""
        if self._again is None:
            return False
        return self._again.repeats(name)

    def since(self, name: str) -> str | None:
        """Where a server must begin to send the transaction of this name, which begins now; None
        where it sends it by itself."""
        if not self.reaches_back:
            return None
        if self.in_files:
            return name
        return self._gtids.text() if self._again is None else self._again.before()

    @property
    def waits(self) -> bool:
        """Whether the server still has to send again some of what was told of its domains."""
        return isinstance(self._again, _DomainsAgain) and self._again.waits

    # --- what ended ------------------------------------------------------------------------------

    def abandoned(self) -> None:
        """What began last never ended: the server died within it, and gives its name again."""
        if isinstance(self._again, _DomainsAgain):
            self._again.abandoned()

    def reads(self, binlog: Binlog) -> None:
        """This one is read now."""
        self.position = structs.replace(self.position, binlog=binlog)

    def moved(self, file: str, offset: int) -> None:
        """Nothing but files' ends was read up to here: who is at one's end need not keep it. An
        event that is in no file says 0."""
        place = f"{file}:{offset}"
        if self.in_files and offset and not self.repeats(place):
            self._gtids.add(place)
            self.position = structs.replace(self.position, gtids=self._gtids.text())

    def ended(
        self, name: str, *, prepared: Prepared, also: str | None = None, **facts: Any
    ) -> None:
        """The transaction of this name, or up to this place, is behind us; `facts` are the
        position's. `also` is one that was left out so far."""
        self._gtids.add(name)
        if also is not None and not self.reaches_back:
            self._gtids.add(also)
        before = self.position
        if self._again is not None and self._again.waits:
            # More that is prepared may be among what comes again.
            prepared = Prepared(before.since, before.since_at)
        self.position = structs.replace(
            before,
            gtids=self._gtids.text(),
            since=prepared.since,
            since_at=prepared.seconds,
            version=version_of(before.flavour, prepared.since),
            gap_said=False,
            **facts,
        )


class _DomainsAgain:
    """What comes again of MariaDB's domains, each in its order, whatever is between them."""

    def __init__(self, begin: dict[int, Gtid], until: dict[int, Gtid]) -> None:
        self._until = {domain: last for domain, last in until.items() if begin.get(domain) != last}
        self._seen = set[int]()
        """The domains whose last was seen."""
        self._reached = Domains(dict(begin))
        self._begun = ""

    @property
    def waits(self) -> bool:
        """Whether some of it did not come yet."""
        return len(self._seen) < len(self._until)

    def repeats(self, name: str) -> bool:
        """Takes the next transaction."""
        if self._begun:
            self._reached.add(self._begun)
        self._begun = name
        gtid = Gtid.parse(name)
        last = self._until.get(gtid.domain)
        if last is None:
            return False
        if gtid == last:
            self._seen.add(gtid.domain)
            return True
        if gtid.domain in self._seen or gtid.sequence > last.sequence:
            # The order of a domain is the binlog's. Rather told twice than never.
            del self._until[gtid.domain]
            self._seen.discard(gtid.domain)
            return False
        return True

    def abandoned(self) -> None:
        """The transaction that was taken last was none: its name may come again."""
        if self._begun:
            gtid = Gtid.parse(self._begun)
            if gtid == self._until.get(gtid.domain):
                self._seen.discard(gtid.domain)
        self._begun = ""

    def before(self) -> str:
        """What is before the transaction that was taken last."""
        return self._reached.text()


class _FilesAgain:
    """What comes again of files."""

    def __init__(self, until: str) -> None:
        self._until = FilePlace.parse(until)
        self.waits = True

    def repeats(self, place: str) -> bool:
        """Takes the place of the next transaction."""
        self.waits = self.waits and FilePlace.parse(place).is_before(self._until)
        return self.waits

    def before(self) -> str:
        """Not asked: a transaction's name is where it begins."""
        raise MalformedEventError("a place in a file has none before it")


def _again(position: MysqlPosition) -> _DomainsAgain | _FilesAgain | None:
    if position.since is None:
        return None
    if position.flavour == "mariadb":
        return _DomainsAgain(parse_gtids(position.since), parse_gtids(position.gtids))
    return _FilesAgain(position.gtids)
