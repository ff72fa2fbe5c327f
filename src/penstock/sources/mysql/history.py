"""How far back a server's binlogs reach, and whether they are those that we read."""

import ssl

import pymysql
import structlog

from penstock.errors import SourceChangedError, SourceUnavailableError
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    Connected,
    Facts,
    ask,
    connect,
    discard,
    facts,
    oldest_binlog,
    translated,
)
from penstock.sources.mysql.described import unmatched
from penstock.sources.mysql.holdings import flavour_of, holdings
from penstock.sources.mysql.positions import MysqlPosition, Server, told, without_domains
from penstock.sources.mysql.proofs import Proof, Prover, begun_at
from penstock.sources.mysql.replicating import will_have
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.stream import BinlogStream, drawn_server_id

logger = structlog.get_logger(__name__)


def seconds_to_loss(source: str, config: MysqlSourceConfig, known: MysqlPosition) -> float | None:
    """As `Retains.seconds_to_loss`; blocks.

    From when the oldest binlog was begun to the last transaction before the position, or to now
    where the server has no newer one; or to the oldest XA transaction that is still prepared. None
    while no binlog was ever purged.
    """
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        found = facts(connection)
        oldest = oldest_binlog(connection)
        if oldest is None:
            return None
        ours, theirs = known.told(), holdings(connection, found, known.flavour)
        if not theirs.before:
            return None
        if known.needed().purged(theirs.before) is not None:
            return 0.0
        until = known.since_at or known.at
        if not known.since_at and ours.text() == told(known.flavour, theirs.end).text():
            ((now,),) = ask(connection, "SELECT UNIX_TIMESTAMP()")
            until = int(now)
        elif not until:
            return None
        stream = BinlogStream(connection)
        stream.deadline(config.connect_timeout)
        stream.begin_at(found, file=oldest, server_id=drawn_server_id())
        return max(0.0, float(until - begun_at(stream)))
    except (pymysql.MySQLError, OSError, ssl.SSLError) as error:
        raise translated(source, config, error) from None
    finally:
        discard(connection)


def _and_prepared(known: MysqlPosition, before: str) -> str:
    if known.told().purged(before) is not None:
        return ""
    return ", and with them the rows of an XA transaction that was prepared there"


def lost(
    source: str,
    found: Facts,
    asking: Connected,
    *,
    known: MysqlPosition,
    server: Server,
    prover: Prover,
) -> str | None:
    """Why the server cannot go on from `known`, in words; None if it can (S7).

    Raises SourceChangedError where another server answers that has another history (S6). A
    replica that takes the server's place has ours, and is gone on from; SourceUnavailableError for
    one that is behind.
    """
    # Who stands in a file goes on in files: but on no other server.
    in_files = known.flavour == "mysql_files"
    now = flavour_of(found)
    same_kind = not found.is_mariadb if in_files else known.flavour == now
    if not same_kind or (in_files and server != known.server):
        raise SourceChangedError(
            source=source,
            expected=f"{known.server}, and positions of the kind {known.flavour}",
            found=f"{server}, and {now}",
        )
    theirs = holdings(asking, found, known.flavour)
    same = server == known.server
    strange = without_domains(known, theirs.logged).told().unknown(theirs.logged)
    # With semi-synchronous replication it sends what it calls executed once a replica has it.
    if strange is not None and not (same and prover.has_last(known, theirs)):
        if not same and will_have(asking, known, strange):
            raise SourceUnavailableError(
                f"{source}: {server} answers, a replica that does not have the transaction "
                f"{strange} yet. Nothing was mixed; capture goes on by itself once it has that. "
                f"Wait for it, or see why it does not apply what it replicates. If it never will, "
                f"for the server that had it is lost, give it a source name of its own."
            )
        if not same:
            raise SourceChangedError(
                source=source,
                expected=f"{known.server}, which had the transaction {strange}",
                found=f"{server}, which never had it",
            )
        return f"the server was reset: it has no transaction {strange}"
    gone = known.needed().purged(theirs.before)
    if gone is not None:
        and_rows = _and_prepared(known, theirs.before)
        return f"the server has purged its binlogs up to {gone}{and_rows}"
    if same:
        return _unproven(known, prover.same_server(known, theirs))
    proof = prover.by_last(known, theirs)
    if proof is Proof.ANOTHER:
        raise SourceChangedError(
            source=source,
            expected=f"{known.server}, which had the transaction {known.last} at another time",
            found=f"{server}, whose transaction of that number is another",
        )
    if proof is Proof.NONE:
        return (
            f"another server answers, {server}, and no binlog of it has a transaction by which its "
            f"history would be proven to be that of {known.server}"
        )
    logger.warning(
        "another server has our transactions, and is gone on from",
        source=source,
        before=str(known.server),
        after=str(server),
    )
    return None


def _unproven(known: MysqlPosition, proof: Proof) -> str | None:
    if proof is Proof.OURS:
        return None
    if proof is Proof.ANOTHER:
        last = f": its transaction {known.last} is another" if known.last else ""
        return f"the server was set up anew, or restored from an older copy{last}"
    file = known.file if known.binlog is None else known.binlog.file
    return (
        f"the server has the binlog {file} no more, in which we stood, and so nothing by which its "
        f"history would be proven to be the one that was read"
    )


def names_nothing(source: str, config: MysqlSourceConfig) -> list[str]:
    """As `NamesThings.unmatched`; blocks."""
    if config.scope == Scope():
        return []
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        return unmatched(connection, config.scope)
    except (pymysql.MySQLError, OSError) as error:
        raise translated(source, config, error) from None
    finally:
        discard(connection)
