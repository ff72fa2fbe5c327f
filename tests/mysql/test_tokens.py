"""Statements are split as their servers split them: what is said of one is what it made."""

import random
import re
from collections.abc import Sequence

import msgspec
import pymysql
import pytest

from penstock.audit.fold import Name
from penstock.event import ChangeEvent, SchemaEvent
from penstock.mysql_sql.alterations import Alteration, alteration
from penstock.mysql_sql.tokens import plain_comments, significant, tokens
from penstock.sources.mysql.definitions import defined
from tests.mysql.conftest import on
from tests.mysql.statement_cases import ANSI, MSSQL, NO_ESCAPES
from tests.mysql.support import Story, caught_up, run, source_of
from tests.seeds import seed_of
from tests.telling import follow
from tests_support.servers import MySqlServer, SqlServer


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
Named = tuple[str, bool]
"""A name, and whether it may be written without quotes."""
MODES = ["", ANSI, NO_ESCAPES, f"{ANSI},{NO_ESCAPES}"]


class Writer:
    """Writes statements in one of the ways in which a session may, at random."""

    def __init__(
        self,
        chance: random.Random,
        modes: str,
        database: str,
        *,
        of_mysql: bool,
        there: list[Named],
    ) -> None:
        """`there` are tables that were made, be they there or not."""
        self._chance = chance
        self._modes = modes
        self._database = database
        self._of_mysql = of_mysql
        self._there = there

    def new_name(self) -> Named:
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

    def statement(self, number: int, table: Named, columns: Sequence[Named]) -> str:
        """A statement about a table with these columns: of each form by turns, with some white
        space for each `~`."""
        forms = [self._rename, self._drop, self._truncate, self._create, self._create, self._moved]
        if number % 2:
            text = self._alter(table, columns)
        else:
            text = forms[number // 2 % len(forms)](table, columns)
        return re.sub("~", lambda _: self.space(), text)

    def create(self, table: Named, columns: Sequence[Named]) -> str:
        """The statement that makes a table with virtual columns."""
        return f"CREATE TABLE {self.name(*table)} {self._defined(columns)}"

    def _defined(self, columns: Sequence[Named]) -> str:
        listed = ", ".join(f"{self.name(*one)} INT AS (id) VIRTUAL" for one in columns)
        return f"(id INT PRIMARY KEY, {listed})"

    def _table(self, table: Named) -> str:
        """A table's name, maybe with its database."""
        name, said = self.name(*table), self._chance.random()
        if said < 0.2:
            return f"{self._database}.{name} "
        # `.1` is a number.
        return f".{name} " if said < 0.4 and not self._of_mysql and not name[0].isdigit() else name

    def _if(self, words: str, *, of_mysql: bool = True) -> str:
        """Words that are there or not, and never on MySQL if it has none of them."""
        has_them = of_mysql or not self._of_mysql
        return f"{words}~" if has_them and self._chance.random() < 0.4 else ""

    def _other(self) -> Named:
        return self._chance.choice(self._there)

    def _rename(self, table: Named, _: Sequence[Named]) -> str:
        spare, other, new = self.new_name(), self._other(), self.new_name()
        steps = self._chance.choice(
            [
                [(table, new)],
                [(table, spare), (spare, new), (new, table)],
                [(table, spare), (other, table), (spare, other)],
                [(table, spare), (spare, new)],
            ]
        )
        if_exists = "IF~EXISTS~" if not self._of_mysql and len(steps) == 1 else ""
        if if_exists and self._chance.random() < 0.5:
            steps = [(new, table)]
        moves = (f"{self._table(one)} ~TO~{self._table(to)}" for one, to in steps)
        return f"RENAME~TABLE{self._chance.choice(['', 'S'])}~{if_exists}{' ~,~'.join(moves)}"

    def _drop(self, table: Named, _: Sequence[Named]) -> str:
        tables = [table, *self._chance.choices([*self._there, self.new_name()], k=2)]
        listed = " ~,~".join(map(self._table, tables))
        return f"DROP~TABLE~{self._if('IF~EXISTS') and 'IF~EXISTS~'}{listed}"

    def _truncate(self, table: Named, _: Sequence[Named]) -> str:
        return f"TRUNCATE~{self._if('TABLE')}{self._table(table)}"

    def _create(self, table: Named, columns: Sequence[Named]) -> str:
        """A table that is there, or another one."""
        chance = self._chance
        replaces = self._if("OR~REPLACE", of_mysql=False)
        new = table if replaces or chance.random() < 0.5 else self.new_name()
        unless = "" if replaces else self._if("IF~NOT~EXISTS")
        other = self._table(self._other())
        what = chance.choice(
            [
                self._defined(columns[1:]),
                f"LIKE~{other}",
                f"(~LIKE~{other} )",
                f"{self._if('AS')}SELECT~1 AS id",
                f"{self._defined(columns[2:])} SELECT 1 AS id, 'x' AS {self.name(*columns[0])}",
                "(~SELECT 2 AS id) ",
            ]
        )
        return f"CREATE~{replaces}TABLE~{unless}{self._table(new)} ~{what}"

    def _moved(self, table: Named, _: Sequence[Named]) -> str:
        if_exists, new = self._if("IF~EXISTS", of_mysql=False), self.new_name()
        return f"ALTER~TABLE~{if_exists}{self._table(table)} ~RENAME~{self._table(new)}"

    def _alter(self, table: Named, columns: Sequence[Named]) -> str:
        chance = self._chance
        if_exists = self._if("IF~EXISTS", of_mysql=False)
        if if_exists and chance.random() < 0.2:
            table = self.new_name()
        parts = [self._part(table, one) for one in columns]
        if chance.random() < 0.4:
            parts.append(f"COMMENT~={self.text()}")
        chance.shuffle(parts)
        begin = chance.choice(["", "", "/*!", "/*!50000", "/*M!100100", "/*!99999", "/*M!999999"])
        head = f"ALTER~TABLE~{if_exists}{self._table(table)} ~{parts[0]}"
        rest = "".join(f"~,~{one}" for one in parts[1:])
        if "/*/" in rest:
            begin = ""  # where a server does not run it, what it logs ends within the name
        return f"{head} {begin} {rest} */" if begin else f"{head}{rest}"

    def _part(self, table: Named, column: Named) -> str:
        is_there = self._chance.random() < 0.8
        if_exists = self._if("IF~EXISTS", of_mysql=False)
        if if_exists and not is_there:
            column = self.new_name()
        name, new = self.name(*column), self.name(*self.new_name())
        if not self._of_mysql and self._chance.random() < 0.2:
            name = f"{self.name(*table)}.{name}"
        match self._chance.randrange(4):
            case 0:
                return f"DROP~{if_exists}{name}"
            case 1:
                return f"DROP~COLUMN ~{if_exists}{name}"
            case 2:
                return f"RENAME~COLUMN~{if_exists}{self.name(*column)} ~TO~{new}"
            case _:
                return f"CHANGE~{if_exists}{name} {new} INT~AS~(id + 1)~VIRTUAL"


Tables = dict[str, set[str] | None]
"""The virtual columns of each table; None where nobody says them."""


def in_catalog(
    server: SqlServer, database: str
) -> tuple[dict[str, set[str]], dict[str, list[int]]]:
    """The virtual columns of each table, and its rows."""
    columns: dict[str, set[str]] = {}
    rows: dict[str, list[int]] = {}
    with server.connect(database=database) as db:
        for table, column, extra in run(
            db,
            "SELECT TABLE_NAME, COLUMN_NAME, EXTRA FROM information_schema.COLUMNS "
            f"WHERE TABLE_SCHEMA = '{database}'",
        ):
            virtual = columns.setdefault(table, set())
            if "VIRTUAL" in extra:
                virtual.add(column.casefold())
        for table in columns:
            quoted = table.replace("`", "``")
            found = [number for (number,) in run(db, f"SELECT id FROM `{quoted}`")]
            if found:
                rows[table] = found
    return columns, rows


def said(events: Sequence[SchemaEvent]) -> tuple[Tables, Tables]:
    """The virtual columns of each table, as `defined` says and as `alteration` says."""
    by_definition: Tables = {}
    by_alteration: Tables = {}

    def known(table: Name) -> frozenset[str] | None:
        columns = by_definition.get(table[1])
        return None if columns is None else frozenset(columns)

    for event in events:
        facts = msgspec.json.decode(event.description)
        name, statement = event.collection, facts["statement"]
        modes = facts.get("sqlMode", "")
        if "truncated" in facts:
            assert name in by_definition
        elif event.operation == "drop":
            for one in (by_definition, by_alteration):
                one.pop(name, None)
        elif event.operation == "rename":
            to = facts["to"]["coll"]
            for one in (by_definition, by_alteration):
                one[to] = one.pop(name)
        else:
            told = alteration(statement, modes)
            is_new = event.operation == "create" or name not in by_definition
            if event.operation == "modify" and is_new:
                if told.if_exists:
                    continue
                # MySQL does not say of CREATE TABLE IF NOT EXISTS ... SELECT that it made one.
                assert significant(tokens(statement, modes))[0].word == "CREATE"
            after = defined(statement, database=event.database, known=known, sql_mode=modes)
            assert after is not None
            assert after[0][1] == name
            by_definition[name] = None if after[1] is None else set(after[1])
            if is_new:
                by_alteration[name] = by_definition[name]
            by_alteration[name] = _altered(by_alteration[name], told)
    return by_definition, by_alteration


def _altered(before: set[str] | None, told: Alteration) -> set[str] | None:
    if before is None:
        return None
    done = [one for one in told.renamed if not one.if_exists or one.old.casefold() in before]
    gone = {*told.dropped, *(one.old for one in done)}
    return before - {one.casefold() for one in gone} | {one.new.casefold() for one in done}


async def spoken(server: SqlServer, database: str, *, count: int, chance: random.Random) -> int:
    """Run so many statements, compare what is said of them with the catalog; how many ran."""
    source = source_of(server, include=[f"{database}.*"])
    story = await follow(source, Story(), lambda _: True)
    is_mysql = isinstance(server, MySqlServer)
    there: list[Named] = [("it's", False)]
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
                "CREATE TABLE .dotted (id INT, .a INT AS (id) VIRTUAL, dotted.b INT AS (id))",
                "ALTER TABLE .dotted DROP COLUMN .a, CHANGE dotted.b c INT AS (id) VIRTUAL",
            )
        for number in range(count):
            modes = chance.choice(MODES if is_mysql else [*MODES, MSSQL])
            writer = Writer(chance, modes, database, of_mysql=is_mysql, there=there)
            table, columns = writer.new_name(), [writer.new_name() for _ in range(3)]
            run(db, f"SET sql_mode = '{modes}'")
            for statement in (
                writer.create(table, columns),
                f"INSERT INTO {writer.name(*table)} (id) VALUES ({number})",
                writer.statement(number, table, columns),
            ):
                try:
                    run(db, statement)
                except pymysql.MySQLError as error:
                    print(number, modes, statement, error)
                    break  # a name that is taken, or a column dropped twice
                ran += 1
                print(number, modes, statement)
            there.append(table)
    await caught_up(server, source, story)
    others = [event for event in story.effects if not isinstance(event, ChangeEvent)]
    events = [event for event in others if isinstance(event, SchemaEvent)]
    assert len(events) == len(others), [bytes(one.description) for one in story.system]
    columns_there, rows_there = in_catalog(server, database)
    for found in said(events):
        assert found == {
            one: None if found.get(one, ()) is None else columns
            for one, columns in columns_there.items()
        }
    rows = {
        name.partition(".")[2]: [row["id"] for row in of_table.values()]
        for name, of_table in story.rows().items()
    }
    assert rows == rows_there
    return ran


@on("mariadb", "mysql")
async def test_what_is_said_of_statements_is_what_the_catalog_says_after_them(
    server: SqlServer, database: str
) -> None:
    """A3: whichever server ran them, and however they were written."""
    chance = random.Random(seed_of("tokens"))
    assert await spoken(server, database, count=40, chance=chance) > 60


@on(soak=("mariadb", "mysql"))
async def test_what_is_said_of_very_many_statements_is_what_the_catalog_says(
    server: SqlServer, database: str
) -> None:
    chance = random.Random(seed_of("many tokens"))
    assert await spoken(server, database, count=1500, chance=chance) > 2000
