"""Whether a server can be captured, and what to do where it cannot."""

import asyncio
import contextlib
import ssl

import pymysql

from penstock.checks import Check, Level
from penstock.errors import PenstockError
from penstock.mysql_causes import LACKS_GRANT, code_of
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    Connected,
    Facts,
    ask,
    binlog_end,
    cascading,
    connect,
    discard,
    facts,
    obstacles,
    oldest_binlog,
    tables,
    translated,
)
from penstock.sources.mysql.described import computed_of_hidden, described, forbidden, unmatched
from penstock.sources.mysql.holdings import flavour_of, holdings
from penstock.sources.mysql.logged import Filters, unlogged
from penstock.sources.mysql.moments import no_copies
from penstock.sources.mysql.positions import parse_position
from penstock.sources.mysql.replicating import replicates
from penstock.sources.mysql.stream import BinlogStream, drawn_server_id

EXPIRY_SECONDS_MIN = 14 * 86_400
"""Binlogs that are kept for less leave too little time to mend an outage (A22)."""


async def doctor(
    name: str, config: MysqlSourceConfig, *, position: str | None = None
) -> list[Check]:
    """Look at everything that capture needs, without changing anything.

    `position` is the source's own in the log: whether the server still holds what follows it.
    Raises nothing for a server that is unfit or away: that is a check that is not ok.
    """
    return await asyncio.to_thread(_looked, name, config, position)


def _looked(name: str, config: MysqlSourceConfig, position: str | None) -> list[Check]:
    checks: list[Check] = []
    connection: Connected | None = None
    try:
        connection = connect(name, config, read_seconds=config.connect_timeout)
        found = facts(connection)
        checks.append(Check(name="connection", level=Level.OK, detail=f"reached {found.version}"))
        checks += _settings(found, partial_rows=config.on_partial_rows == "decode")
        if found.log_bin:
            checks += _examine(name, config, connection, found, position)
    except PenstockError as error:
        checks.append(Check.failed("connection", error))
    except (pymysql.MySQLError, OSError, ssl.SSLError) as error:
        about = "privileges" if code_of(error) in LACKS_GRANT else "connection"
        checks.append(Check.failed(about, translated(name, config, error)))
    finally:
        if connection is not None:
            discard(connection)
    return checks


def _settings(found: Facts, *, partial_rows: bool) -> list[Check]:
    unfit = obstacles(found, partial_rows=partial_rows)
    checks = [
        Check(name="binlog", level=Level.ERROR, detail=why, fix=remedy) for why, remedy in unfit
    ]
    if not unfit:
        checks.append(Check(name="binlog", level=Level.OK, detail="rows, with names and types"))
    if partial_rows and found.binlog_row_image != "FULL":
        checks.append(
            Check(
                name="row image",
                level=Level.WARNING,
                detail=f"binlog_row_image is {found.binlog_row_image}: rows lack what did not "
                f"change, no image before a change is told, and a REPLACE stops capture",
                fix="SET GLOBAL binlog_row_image = 'FULL', in the server's file too",
            )
        )
    if found.is_mariadb and not found.gtid_strict_mode:
        checks.append(
            Check(
                name="gtid order",
                level=Level.WARNING,
                detail="gtid_strict_mode is OFF: transactions of a domain could come out of order, "
                "and a place among them would then not say what follows",
                fix="SET GLOBAL gtid_strict_mode = ON, in the server's file too",
            )
        )
    if not found.is_mariadb and found.gtid_mode != "ON":
        checks.append(_without_gtids(found))
    return checks


def _without_gtids(found: Facts) -> Check:
    steps = (
        *("enforce_gtid_consistency = ON", "gtid_mode = OFF_PERMISSIVE"),
        *("gtid_mode = ON_PERMISSIVE", "gtid_mode = ON"),
    )
    return Check(
        name="gtids",
        level=Level.WARNING,
        detail=f"gtid_mode is {found.gtid_mode}: a position is a binlog's file and a place in it, "
        f"so capture can go on at no other server",
        fix=" ".join(f"SET GLOBAL {step};" for step in steps)
        + " in this order, each when all replicas and this source have followed, and in the "
        "server's file too. A source that has a position keeps to files: go on with a new one",
    )


def _examine(
    name: str,
    config: MysqlSourceConfig,
    connection: Connected,
    found: Facts,
    position: str | None,
) -> list[Check]:
    oldest = oldest_binlog(connection)
    checks = _logged(config, connection, found)
    checks += [_expiry(connection), *_tables(config, connection), _cascades(config, connection)]
    checks += _columns(config, connection)
    if position is not None:
        checks.append(_position(position, connection, found))
    texts = _texts(connection)
    if config.copies:
        checks.append(_copies(connection, found, position))
    if config.origin_rules.wants_text:
        checks.append(_statements(*texts))
    if config.on_partial_rows == "decode":
        checks += _partial_rows(*texts)
    if config.semi_sync:
        checks.append(_semi_sync(connection, found))
    checks.append(_privileges(name, config, found, oldest))
    return checks


def _logged(config: MysqlSourceConfig, connection: Connected, found: Facts) -> list[Check]:
    unfit = unlogged(connection, found, config.scope)
    checks = [
        Check(name="logged", level=Level.ERROR, detail=why, fix=remedy) for why, remedy in unfit
    ]
    if not found.logs_replicated and replicates(connection) is None:
        checks.append(_maybe_replica(connection, found))
    elif not unfit:
        checks.append(
            Check(name="logged", level=Level.OK, detail="whoever changes a captured table")
        )
    filters = Filters.of(connection)
    if filters.do or filters.ignore:
        checks.append(
            Check(
                name="filters",
                level=Level.WARNING,
                detail=f"{filters.text()}: a CREATE, ALTER, RENAME, TRUNCATE or DROP of a captured "
                f"table is in no binlog where the session's own database (USE) is left out",
                fix="take it out of the server's file and restart the server",
            )
        )
    return checks


def _maybe_replica(connection: Connected, found: Facts) -> Check:
    """Of a server that does not log what it replicates, if it does."""
    has = found.is_mariadb and ask(connection, "SELECT @@GLOBAL.gtid_slave_pos") != [("",)]
    told = "it did replicate once, and " if has else ""
    detail = (
        f"log_slave_updates is OFF: {told}whether it is a replica, whose replicated changes "
        f"would be missed, this user may only see while it replicates"
    )
    shown = "GRANT REPLICA MONITOR ON *.* to this user (MySQL: REPLICATION CLIENT)"
    if not has:
        return Check(name="logged", level=Level.OK, detail=f"{detail}. {shown} shows it")
    return Check(
        name="logged",
        level=Level.WARNING,
        detail=detail,
        fix=f"{shown}, or log_slave_updates = ON in the server's file",
    )


def _copies(connection: Connected, found: Facts, position: str | None) -> Check:
    flavour = flavour_of(found)
    with contextlib.suppress(PenstockError):  # that is a check of its own
        flavour = flavour if position is None else parse_position(position).flavour
    obstacle = no_copies(connection, flavour)
    if obstacle is not None:
        why, remedy = obstacle
        return Check(name="copies", level=Level.ERROR, detail=why, fix=remedy)
    if not found.is_mariadb:
        binlog_end(connection)  # raises where the grant is missing
    return Check(name="copies", level=Level.OK, detail="the server says what a snapshot has")


def _semi_sync(connection: Connected, found: Facts) -> Check:
    if found.semi_sync == "ON":
        counts = ask(connection, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync%_clients'")
        there = str(counts[0][1]) if counts else "0"
        detail = f"enabled; {there} semi-synchronous replicas are connected now"
        return Check(name="semi-sync", level=Level.OK, detail=detail)
    if found.is_mariadb:
        fix = "SET GLOBAL rpl_semi_sync_master_enabled = ON"
    else:
        install = "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'; "
        fix = (install if not found.semi_sync else "") + (
            "SET GLOBAL rpl_semi_sync_source_enabled = ON"
        )
    return Check(
        name="semi-sync",
        level=Level.WARNING,
        detail="semi_sync is set, and the server's commits wait for nobody",
        fix=f"{fix}, in the server's file too; or semi_sync = false",
    )


def _texts(connection: Connected) -> tuple[str, str]:
    """The setting by which the texts of statements are in the binlog, and what it is; two empty
    texts where the server has none."""
    for variable in ("binlog_annotate_row_events", "binlog_rows_query_log_events"):
        for _, value in ask(connection, "SHOW GLOBAL VARIABLES LIKE %s", variable):
            return variable, str(value).upper().replace("1", "ON")
    return "", ""


def _statements(variable: str, value: str) -> Check:
    """Whether the texts of statements will come."""
    if not variable:
        return Check(
            name="statements", level=Level.OK, detail="this server never says what rows are of"
        )
    if value == "ON":
        return Check(name="statements", level=Level.OK, detail="rows come with their statements")
    return Check(
        name="statements",
        level=Level.OK,
        detail=f"rows come without the text of their statements, and without who wrote it: "
        f"{variable} is {value}. SET GLOBAL {variable} = ON, in the server's file too, adds them",
    )


def _partial_rows(variable: str, value: str) -> list[Check]:
    if value == "ON":
        return []
    return [
        Check(
            name="partial rows",
            level=Level.WARNING,
            detail=f"an UPDATE that lacks columns stops capture: {variable} is {value}, so nothing "
            f"says that it is no REPLACE",
            fix=f"SET GLOBAL {variable} = ON, in the server's file too",
        )
    ]


def _privileges(name: str, config: MysqlSourceConfig, found: Facts, oldest: str | None) -> Check:
    connection = connect(name, config, read_seconds=config.connect_timeout)
    try:
        stream = BinlogStream(connection)
        stream.deadline(config.connect_timeout)
        stream.begin_at(found, file=oldest or "", server_id=drawn_server_id())
        stream.read()
    except (pymysql.MySQLError, OSError) as error:
        return Check.failed("privileges", translated(name, config, error))
    finally:
        discard(connection)
    return Check(name="privileges", level=Level.OK, detail="can read the binlog")


def _expiry(connection: Connected) -> Check:
    if _has(connection, "max_binlog_total_size"):
        ((size,),) = ask(connection, "SELECT @@max_binlog_total_size")
        if size:
            return Check(
                name="expiry",
                level=Level.WARNING,
                detail=f"binlogs are purged beyond {size} bytes, however young they are",
                fix="SET GLOBAL max_binlog_total_size = 0",
            )
    seconds = _expire_seconds(connection)
    days = seconds / 86_400
    kept = f"binlogs are kept for {days:g} days" if seconds else "binlogs are never purged by age"
    if not seconds or seconds >= EXPIRY_SECONDS_MIN:
        return Check(name="expiry", level=Level.OK, detail=kept)
    fix = f"SET GLOBAL binlog_expire_logs_seconds = {EXPIRY_SECONDS_MIN}"
    return Check(name="expiry", level=Level.WARNING, detail=kept, fix=fix)


def _has(connection: Connected, variable: str) -> bool:
    return bool(ask(connection, "SHOW GLOBAL VARIABLES LIKE %s", variable))


def _expire_seconds(connection: Connected) -> int:
    if _has(connection, "binlog_expire_logs_seconds"):
        ((seconds,),) = ask(connection, "SELECT @@binlog_expire_logs_seconds")
        return int(seconds)
    ((days,),) = ask(connection, "SELECT @@expire_logs_days")
    return round(86_400 * float(days))


def _tables(config: MysqlSourceConfig, connection: Connected) -> list[Check]:
    captured = tables(connection, config.scope)
    checks = [
        Check(name="tables", level=Level.OK, detail=f"{len(captured)} tables are captured now")
    ]
    checks += Check.names(unmatched(connection, config.scope))
    rows = ask(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.STATISTICS WHERE NON_UNIQUE = 0 "
        "GROUP BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME HAVING SUM(NULLABLE = 'YES') = 0",
    )
    keyed = {(str(database), str(name)) for database, name in rows}
    without = [".".join(one) for one in captured if one not in keyed]
    if without:
        checks.append(
            Check(
                name="keys",
                level=Level.WARNING,
                detail=f"without a key, so that equal rows are one to whoever keeps current rows: "
                f"{', '.join(without[:10])}",
                fix="give them a primary key, or leave them out with exclude",
            )
        )
    return checks


def _cascades(config: MysqlSourceConfig, connection: Connected) -> Check:
    found = cascading(connection, config.scope)
    if not found:
        return Check(name="foreign keys", level=Level.OK, detail="none changes rows by itself")
    return Check(
        name="foreign keys",
        level=Level.ERROR if config.on_cascades == "halt" else Level.WARNING,
        detail=f"rows that a foreign key deletes or sets by itself are not in any binlog: "
        f"{', '.join(found[:10])}",
        fix="have the application change these rows (ON DELETE RESTRICT), or exclude the tables",
    )


def _columns(config: MysqlSourceConfig, connection: Connected) -> list[Check]:
    patterns = config.scope.columns.patterns
    if not patterns:
        return []
    there = described(connection, config.scope)
    wrong = forbidden(there, config.columns.rules)
    if wrong:
        detail, fix = "; ".join(wrong[:10]), "correct the source's columns"
        return [Check(name="columns", level=Level.ERROR, detail=detail, fix=fix)]
    detail = f"{len(patterns)} patterns of columns, none of a column that it cannot be of"
    checks = [Check(name="columns", level=Level.OK, detail=detail)]
    computed = computed_of_hidden(there, config.columns.rules)
    if computed:
        checks.append(
            Check(
                name="computed columns",
                level=Level.WARNING,
                detail=f"left out, for the server computes them of columns that are not told as "
                f"they are: {', '.join(computed[:10])}",
                fix="where that is not meant, give them a rule of their own (columns.mask, hash or "
                "truncate)",
            )
        )
    return checks


def _position(text: str, connection: Connected, found: Facts) -> Check:
    try:
        known = parse_position(text)
    except PenstockError as error:
        return Check.failed("position", error)
    ours, theirs = known.told(), holdings(connection, found, known.flavour)
    gone = known.needed().purged(theirs.before)
    strange = ours.unknown(theirs.logged)
    if gone is None and strange is None:
        return Check(
            name="position", level=Level.OK, detail=f"the server holds all after {known.gtids}"
        )
    why = (
        f"the binlogs up to {gone} were purged"
        if strange is None
        else (f"the server never had {strange}: it was reset, or is another")
    )
    return Check(
        name="position",
        level=Level.ERROR,
        detail=f"what follows {known.gtids or 'the beginning'} is lost: {why}",
        fix="set on_position_lost = 'gap' to record the gap and go on from now, and copy the "
        "tables by other means",
    )
