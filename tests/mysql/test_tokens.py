"""Statements are split as their servers split them: what is said of one is what it made."""

import random
from collections.abc import Sequence
from functools import partial

import msgspec
import pymysql
import pytest

from penstock.audit.fold import Name
from penstock.event import SchemaEvent
from penstock.mysql_sql.alterations import alteration
from penstock.mysql_sql.tokens import plain_comments, significant, tokens
from penstock.sources.mysql.definitions import defined
from penstock.testing.servers import MySqlServer, SqlServer
from tests.mysql.conftest import on
from tests.mysql.statement_cases import ANSI, MSSQL, NO_ESCAPES
from tests.mysql.support import Story, caught_up, run, source_of
from tests.seeds import seed_of
from tests.telling import follow


def test_a_comment_of_mariadb_is_a_plain_one_in_a_statement_of_mysql() -> None:
    statement = "ALTER TABLE t DROP a /*M!100301 , DROP b it's */ /*! , COMMENT '/*M! x */' */"
    told = plain_comments(statement)
    assert told == statement.replace("a /*M!", "a /*M ")
    assert alteration(told).dropped == ("a",)
    kept = "ALTER TABLE t COMMENT '/*M!100301 */'"
    assert plain_comments(kept) == kept


@pytest.mark.parametrize("quote", ["'", '"', "`", "/*", "/*!50000 /*"])
def test_a_quote_that_does_not_end_takes_all_that_follows(quote: str) -> None:
    *_, last = significant(tokens(f"ALTER TABLE t DROP a {quote} , DROP b"))
    assert last.kind == "open"
    assert last.text.endswith(", DROP b")


# --- statements that servers ran ------------------------------------------------------------------

PLAIN = [*"aZ_$é·中（\u00a0\u3000\u0e31\u200bſıſ\uffff", "1", "9e", "0x", "DROP"]
QUOTED = [*PLAIN, *"`\"'[]\\,. -#/*!()", "/*", "*/", "/*!", "-- ", "--", "😀"]
SPACES = [" ", "\t", "\n", "\r\n", " /* it's */ ", " /*!*/ ", "/**/", "-- it's\n", "#`\n"]
MODES = ["", ANSI, NO_ESCAPES, f"{ANSI},{NO_ESCAPES}"]


class Writer:
    """Writes statements in one of the ways in which a session may, at random."""

    def __init__(self, chance: random.Random, modes: str) -> None:
        self._chance = chance
        self._modes = modes

    def new_name(self) -> tuple[str, bool]:
        """A name, and whether it may be written without quotes."""
        plain = self._chance.random() < 0.6
        parts = self._chance.choices(PLAIN if plain else QUOTED, k=self._chance.randint(1, 4))
        return "".join(parts), plain

    def name(self, name: str, plain: bool) -> str:
        """The name as it may be written."""
        quotes = ["`", '"'] if "ANSI_QUOTES" in self._modes else ["`"]
        if "MSSQL" in self._modes:
            quotes.append("]")
        if plain:
            quotes += ["", ""]
        quote = self._chance.choice(quotes)
        return f"{'[' if quote == ']' else quote}{name.replace(quote, quote * 2) if quote else name}{quote}"  # noqa: E501

    def space(self) -> str:
        return self._chance.choice(SPACES)

    def text(self) -> str:
        """A text as it may be written."""
        inner = "".join(self._chance.choices([*QUOTED, ", DROP b"], k=self._chance.randint(0, 3)))
        quote = "'" if "ANSI_QUOTES" in self._modes else self._chance.choice("'\"")
        if "NO_BACKSLASH_ESCAPES" not in self._modes:
            inner = inner.replace("\\", "\\\\")
            if self._chance.random() < 0.5:
                return f"{quote}{inner.replace(quote, chr(92) + quote)}{quote}"
        return f"{quote}{inner.replace(quote, quote * 2)}{quote}"

    def statement(self, table: tuple[str, bool], columns: Sequence[tuple[str, bool]]) -> str:
        """A statement about a table with these columns."""
        chance, space = self._chance, self.space
        written, others = self.name(*table), [self.name(*one) for one in columns]
        if chance.random() < 0.3:
            written = f"{written}{space()}"
        match chance.randrange(6):
            case 0:
                new = self.name(*self.new_name())
                return f"RENAME{space()}TABLE{space()}{written} {space()}TO{space()}{new}"
            case 1:
                return f"DROP{space()}TABLE{space()}{written}"
            case 2:
                new = self.name(*self.new_name())
                return f"ALTER{space()}TABLE{space()}{written} {space()}RENAME{space()}{new}"
            case _:
                parts = [self._part(one) for one in others]
                if chance.random() < 0.4:
                    parts.append(f"COMMENT{space()}={self.text()}")
                chance.shuffle(parts)
                begin = chance.choice(["", "", "/*!", "/*!50000", "/*M!100100", "/*!99999", "/*M!999999"])  # noqa: E501  # fmt: skip
                head = f"ALTER{space()}TABLE{space()}{written} {space()}{parts[0]}"
                rest = "".join(f"{space()},{space()}{one}" for one in parts[1:])
                return f"{head} {begin} {rest} */" if begin else f"{head}{rest}"

    def _part(self, column: str) -> str:
        space = self.space
        match self._chance.randrange(4):
            case 0:
                return f"DROP{space()}{column}"
            case 1:
                return f"DROP{space()}COLUMN {space()}{column}"
            case 2:
                new = self.name(*self.new_name())
                return f"RENAME{space()}COLUMN{space()}{column} {space()}TO{space()}{new}"
            case _:
                new = self.name(*self.new_name())
                return (
                    f"CHANGE{space()}{column} {new} INT{space()}AS{space()}(id + 1){space()}VIRTUAL"
                )


Tables = dict[str, set[str]]


def in_catalog(server: SqlServer, database: str) -> Tables:
    """The virtual columns of each table."""
    found: Tables = {}
    with server.connect() as db:
        for table, column, extra in run(
            db,
            "SELECT TABLE_NAME, COLUMN_NAME, EXTRA FROM information_schema.COLUMNS "
            f"WHERE TABLE_SCHEMA = '{database}'",
        ):
            columns = found.setdefault(table, set())
            if "VIRTUAL" in extra:
                columns.add(column.casefold())
    return found


def _known(virtual: frozenset[str], _: Name) -> frozenset[str]:
    return virtual


def said(events: Sequence[SchemaEvent]) -> tuple[Tables, Tables]:
    """The virtual columns of each table, as `defined` says and as `alteration` says."""
    by_definition: Tables = {}
    by_alteration: Tables = {}
    for event in events:
        facts = msgspec.json.decode(event.description)
        name, statement = event.collection, facts["statement"]
        modes = facts.get("sqlMode", "")
        if event.operation == "create":
            by_alteration[name] = set()
        if event.operation == "drop":
            del by_definition[name], by_alteration[name]
        elif event.operation == "rename":
            to = facts["to"]["coll"]
            for one in (by_definition, by_alteration):
                one[to] = one.pop(name)
        else:
            after = defined(
                statement,
                database=event.database,
                known=partial(_known, frozenset(by_definition.get(name, ()))),
                sql_mode=modes,
            )
            assert after is not None
            assert after[0][1] == name
            by_definition[name] = set(after[1] or ())
            if event.operation == "create":
                by_alteration[name] = set(by_definition[name])
            told = alteration(statement, modes)
            gone = {*told.dropped, *(one.old for one in told.renamed)}
            by_alteration[name] -= {one.casefold() for one in gone}
            by_alteration[name] |= {one.new.casefold() for one in told.renamed}
    return by_definition, by_alteration


async def spoken(server: SqlServer, database: str, *, count: int, chance: random.Random) -> int:
    """Run so many statements, compare what is said of them with the catalog; how many ran."""
    source = source_of(server, include=[f"{database}.*"])
    story = await follow(source, Story(), lambda _: True)
    is_mysql = isinstance(server, MySqlServer)
    ran = 0
    with server.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE `it's` (id INT, a INT AS (id) VIRTUAL, b INT AS (id) VIRTUAL)",
            "ALTER TABLE `it's` DROP COLUMN a /*M!100301 , DROP COLUMN b */",
        )
        if not is_mysql:
            run(
                db,
                "CREATE TABLE .dotted (id INT, a INT AS (id) VIRTUAL, b INT AS (id) VIRTUAL)",
                "ALTER TABLE .dotted DROP COLUMN a, RENAME COLUMN b TO c",
            )
        for number in range(count):
            modes = chance.choice(MODES if is_mysql else [*MODES, MSSQL])
            writer = Writer(chance, modes)
            table, columns = writer.new_name(), [writer.new_name() for _ in range(3)]
            run(db, f"SET sql_mode = '{modes}'")
            listed = ", ".join(f"{writer.name(*one)} INT AS (id) VIRTUAL" for one in columns)
            for statement in (
                f"CREATE TABLE {writer.name(*table)} (id INT, {listed})",
                writer.statement(table, columns),
            ):
                try:
                    run(db, statement)
                except pymysql.MySQLError:
                    break  # a name that is taken, or a column dropped twice
                ran += 1
            print(number, modes, statement)
    await caught_up(server, source, story)
    events = [event for event in story.effects if isinstance(event, SchemaEvent)]
    assert len(events) == len(story.effects), story.system
    there = in_catalog(server, database)
    by_definition, by_alteration = said(events)
    assert by_definition == there
    assert by_alteration == there
    return ran


@on("mariadb", "mysql")
async def test_what_is_said_of_statements_is_what_the_catalog_says_after_them(
    server: SqlServer, database: str
) -> None:
    """A3: whichever server ran them, and however they were written."""
    chance = random.Random(seed_of("tokens"))
    assert await spoken(server, database, count=40, chance=chance) > 30


@on(soak=("mariadb", "mysql"))
async def test_what_is_said_of_very_many_statements_is_what_the_catalog_says(
    server: SqlServer, database: str
) -> None:
    chance = random.Random(seed_of("many tokens"))
    assert await spoken(server, database, count=4000, chance=chance) > 3000
