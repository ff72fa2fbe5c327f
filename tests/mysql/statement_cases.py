"""Statements of MySQL and MariaDB, and what is right of each, for every reader of statements."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.sources.mysql.definitions import Virtual
from penstock.sources.mysql.statements import (
    Altered,
    Created,
    DatabaseDropped,
    Dropped,
    Emptied,
    Ensured,
    Name,
    Renamed,
    RowsAsStatement,
    RowsChanged,
    Said,
)

ANSI, NO_ESCAPES, MSSQL = "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,MSSQL"
NAMES = [
    "ग्राहक",  # vowel signs
    "ลูกค้า",
    "订单（旧）",
    "l·lamp",
    "a\u00a0b",
    "a\u3000b",
    "a\u2028b",
    "a\u200bb",
    "\x85",
    "\u0080\uffff",
    "aſ",  # whose capitals are AS
    "ıf",
    "$a$",
    "0x1G",
    "1st",
    "1e",
    "_1",
]
"""Names without quotes, of characters that both servers take so."""


KEPT = "kept"
"""A virtual column that every table has, and that no statement here speaks of."""


class Case(NamedTuple):
    """A statement of a session in the database `d`, and what it says. Its texts have the word
    SECRET, its names do not."""

    statement: str
    effects: Sequence[Said]
    defined: tuple[Name, Virtual | None] | None = None
    """The table whose virtual columns it decides, and those after it. Before it, every table has
    KEPT, and what the statement drops or renames."""
    dropped: Sequence[str] = []
    renamed: Sequence[tuple[str, str]] = []
    written: Sequence[Name] = []
    """The tables that it may write rows to, beside one that it makes."""
    modes: str = ""
    of_mysql: Sequence[Said] | None = None
    """Its effects on MySQL, if those are others: it does not run comments of MariaDB."""
    certain: bool = True
    """Whether its comments are the same to a session of any mode."""
    again: bool = True
    """Whether it can be said of tables that are elsewhere."""
    alike: bool = False
    """Whether it makes a table like another."""

    @property
    def makes_one(self) -> bool:
        """Whether its words alone make a table."""
        return self.makes and self.again and not (self.alike or self.written)

    @property
    def makes(self) -> bool:
        """Whether it is a CREATE, with or without variables that are set for it."""
        return self.statement.startswith(
            ("CREATE", "SET STATEMENT max_statement_time=1 FOR CREATE")
        )

    @property
    def known(self) -> Virtual:
        """The virtual columns of every table before it."""
        told = {*self.dropped, *(old for old, _ in self.renamed)}
        return frozenset({KEPT, *(one.casefold() for one in told)})


def altered(
    statement: str,
    dropped: Sequence[str],
    table: str = "t",
    modes: str = "",
    *,
    certain: bool = True,
    of_mysql: Sequence[Said] | None = None,
) -> Case:
    """An ALTER TABLE that drops columns."""
    name = ("d", table)
    return Case(
        statement,
        [Altered(name)],
        (name, frozenset({KEPT})),
        dropped,
        modes=modes,
        certain=certain,
        of_mysql=of_mysql,
    )


def named(one: str) -> list[Case]:
    """Statements with a name without quotes in all of its places."""
    here, there, kept = ("d", one), ("e", one), frozenset({KEPT})
    return [
        altered(f"ALTER TABLE {one} DROP {one}, COMMENT 'SECRET'", [one], one),
        altered(f"ALTER TABLE d.{one} DROP COLUMN IF EXISTS a", ["a"], one),
        Case(f"TRUNCATE {one}", [Emptied(here)]),
        Case(f"TRUNCATE TABLE e.{one} WAIT 1", [Emptied(there)]),
        Case(
            f"RENAME TABLE {one} TO e.{one}, u WAIT 1 TO {one}",
            [Renamed(here, there), Renamed(U, here)],
        ),
        Case(
            f"RENAME TABLES IF EXISTS e.{one} TO u, {one} NOWAIT TO e.{one}",
            [Renamed(there, U, if_exists=True), Renamed(here, there, if_exists=True)],
        ),
        Case(f"DROP TABLE IF EXISTS {one}, e.{one} RESTRICT", [Dropped(here), Dropped(there)]),
        Case(f"DROP TABLE e.{one},{one}", [Dropped(there), Dropped(here)]),
        Case(
            f"CREATE TABLE {one} (id INT COMMENT 'SECRET', {one} INT AS (1) VIRTUAL)",
            [Created(here)],
            (here, frozenset({one.casefold()})),
        ),
        Case(
            f"CREATE TABLE IF NOT EXISTS e.{one} ({one} INT AS (1) VIRTUAL) COMMENT 'SECRET'",
            [Ensured(there)],
            (there, kept),
        ),
        Case(
            f"CREATE TABLE IF NOT EXISTS {one} LIKE e.{one}",
            [Ensured(here)],
            (here, kept),
            alike=True,
        ),
        Case(
            f"CREATE OR REPLACE TABLE e.{one} (LIKE {one})",
            [Dropped(there), Created(there)],
            (there, kept),
            alike=True,
        ),
        Case(
            f"CREATE TABLE {one} SELECT {one} FROM e.{one}",
            [Created(here), OF_QUERY],
            (here, None),
            written=[here],
        ),
        Case(f"CREATE INDEX IF NOT EXISTS {one} ON e.{one} (a)", [Altered(there)]),
        Case(f"DROP INDEX IF EXISTS {one} ON {one}", [Altered(here)]),
    ]


T, U, V, C = ("d", "t"), ("d", "u"), ("d", "v"), ("e", "c")
OF_QUERY = RowsAsStatement("CREATE TABLE ... SELECT")
NONE: Virtual = frozenset()
OUT = "CONVERT PARTITION"

CASES = [
    *[case for one in NAMES for case in named(one)],
    *[altered(f"ALTER TABLE d.{one} DROP COLUMN a", ["a"], one) for one in ["1e5", "7"]],
    altered("ALTER TABLE t DROP COLUMN a /*M!100301 , DROP COLUMN b */", ["a", "b"]),
    altered("ALTER TABLE t DROP COLUMN a /*M 100301 , DROP COLUMN b */", ["a"]),
    altered("ALTER TABLE t DROP COLUMN a /*!80013 , DROP COLUMN b */", ["a", "b"]),
    altered("ALTER TABLE t DROP COLUMN a /*!080013 , DROP COLUMN b */", ["a", "b"]),
    altered("ALTER TABLE t DROP COLUMN a /*!, DROP COLUMN b */", ["a", "b"]),
    altered("ALTER TABLE t DROP COLUMN a /* 80013 , DROP COLUMN b */", ["a"]),
    altered(
        "ALTER TABLE t DROP COLUMN a /*!80013 /* , DROP b */ , DROP c */", ["a", "c"], certain=False
    ),
    altered("ALTER TABLE t DROP COLUMN /*!5000001a */", ["1a"]),
    altered("ALTER TABLE t DROP a, ADD CHECK (b*/* it's */c > 2*/**/3), DROP d", ["a", "d"]),
    altered("ALTER TABLE t DROP a --\t, DROP b\n, DROP c #, DROP d\n, DROP e --", ["a", "c", "e"]),
    altered("ALTER TABLE t DROP a, ADD CHECK (b > 1--2), DROP c --\x01, DROP d", ["a", "c"]),
    altered("ALTER TABLE/**/t/**/DROP/**/a,DROP`b`,DROP`c``,`,ADD`,DROP d`INT", ["a", "b", "c`,"]),
    altered("ALTER TABLE t DROP a, COMMENT 'SECRET'', DROP b', DROP c", ["a", "c"]),
    altered('ALTER TABLE t DROP a, COMMENT "SECRET""\', DROP b", DROP c', ["a", "c"]),
    altered(r"ALTER TABLE t DROP a, COMMENT 'SECRET\', DROP b', DROP c", ["a", "c"], certain=False),
    altered(r'ALTER TABLE t DROP a, COMMENT "SECRET\", DROP b", DROP c', ["a", "c"], certain=False),
    altered(
        r"ALTER TABLE t DROP a, COMMENT 'SECRET\', DROP b",
        ["a", "b"],
        modes=NO_ESCAPES,
        certain=False,
    ),
    altered(
        r'ALTER TABLE t DROP a, COMMENT "SECRET\", DROP b',
        ["a", "b"],
        modes=NO_ESCAPES,
        certain=False,
    ),
    altered(r"ALTER TABLE t DROP `a\`, DROP b", ["a\\", "b"]),
    altered(
        r'ALTER TABLE "t" DROP "a\", DROP "b"", ", DROP c',
        ["a\\", 'b", ', "c"],
        modes=ANSI,
        certain=False,
    ),
    altered("ALTER TABLE [t x] DROP [a]], DROP b], DROP c", ["a], DROP b", "c"], "t x", MSSQL),
    altered("ALTER TABLE t DROP a, ADD b INT DEFAULT (1[2), DROP c", ["a", "c"]),
    altered("ALTER TABLE t ADD a INT DEFAULT 0x1F, ADD b INT DEFAULT 1.5e-3, DROP c", ["c"]),
    altered("ALTER TABLE t ADD a BIT DEFAULT b'1', ADD b BLOB DEFAULT x'5C27', DROP c", ["c"]),
    altered("ALTER TABLE t ADD a TEXT DEFAULT _utf8mb4'SECRET, DROP b', DROP c", ["c"]),
    altered("ALTER TABLE t ADD a TEXT DEFAULT N'SECRET, DROP b', DROP c", ["c"]),
    altered("ALTER TABLE t ADD a INT DEFAULT 1.,DROP b,ADD c INT DEFAULT .5,DROP d", ["b", "d"]),
    altered("ALTER TABLE t DROP 😀, DROP b", ["?", "b"]),
    # --- versioned comments, and plain ones ---
    Case("TRUNCATE /*!50000 TABLE */ t /*M!100000 WAIT 1 */", [Emptied(T)]),
    Case("TRUNCATE/**/t/* TABLE u */", [Emptied(T)]),
    Case(
        "RENAME TABLE t TO u /*M!100000 , e.c TO t */",
        [Renamed(T, U), Renamed(C, T)],
        of_mysql=[Renamed(T, U)],
    ),
    Case("RENAME TABLE t TO u /*M 100000 , e.c TO t */", [Renamed(T, U)]),
    Case(
        "RENAME TABLE t TO u -- , e.c TO t\n, v TO e.c # , u TO v",
        [Renamed(T, U), Renamed(V, C)],
    ),
    Case(
        "DROP TABLE IF EXISTS t /*M!100000 , u */ /*! , v */",
        [Dropped(T), Dropped(U), Dropped(V)],
        of_mysql=[Dropped(T), Dropped(V)],
    ),
    Case("DROP TABLE `t` /* generated by server */ /* xid=133 */", [Dropped(T)]),
    Case("DROP /*!40005 TEMPORARY */ TABLE IF EXISTS t", []),
    Case("DROP /* TEMPORARY */ TABLE IF /*!*/ EXISTS t", [Dropped(T)]),
    Case("CREATE TABLE /*!32312 IF NOT EXISTS*/ t (id INT)", [Ensured(T)], (T, frozenset({KEPT}))),
    Case(
        "CREATE TABLE t (id INT /*!80000 , a INT AS (1) VIRTUAL */ /* , b INT AS (1) */)",
        [Created(T)],
        (T, frozenset("a")),
    ),
    Case(
        "CREATE /*M! OR REPLACE */ TABLE t (id INT)",
        [Dropped(T), Created(T)],
        (T, NONE),
        of_mysql=[Created(T)],
    ),
    Case(
        "CREATE TABLE t (id INT) /*M!100000 SELECT 1 AS id */",
        [Created(T), OF_QUERY],
        (T, NONE),
        written=[T],
        of_mysql=[Created(T)],
    ),
    # --- quotes in each mode ---
    Case('TRUNCATE TABLE "t"', [Emptied(T)], modes=ANSI),
    Case('TRUNCATE "e"."c"', [Emptied(C)], modes=ANSI),
    Case(
        'DROP TABLE IF EXISTS "t"", u", `t``, u`, v',
        [Dropped(("d", 't", u')), Dropped(("d", "t`, u")), Dropped(V)],
        modes=ANSI,
    ),
    Case(
        r'RENAME TABLE "t\" TO "u"',
        [Renamed(("d", "t\\"), U)],
        modes=ANSI,
        certain=False,
    ),
    Case(
        r"RENAME TABLE `t\` TO u, u TO `t\`", [Renamed(("d", "t\\"), U), Renamed(U, ("d", "t\\"))]
    ),
    Case("RENAME TABLE [t x] TO [u]], v]", [Renamed(("d", "t x"), ("d", "u], v"))], modes=MSSQL),
    Case("DROP TABLE IF EXISTS [e].[c], t", [Dropped(C), Dropped(T)], modes=MSSQL),
    Case(
        """CREATE TABLE "t" ("a" INT COMMENT 'SECRET /* by: SECRET */', "b" INT AS (1) VIRTUAL)""",
        [Created(T)],
        (T, frozenset("b")),
        modes=ANSI,
    ),
    Case(
        r"CREATE TABLE t (a TEXT DEFAULT 'SECRET\', b INT AS (1)', c INT AS (1))",
        [Created(T)],
        (T, frozenset("c")),
        certain=False,
    ),
    Case(
        r"CREATE TABLE t (a TEXT DEFAULT 'SECRET\', b INT AS (1))",
        [Created(T)],
        (T, frozenset("b")),
        modes=NO_ESCAPES,
        certain=False,
    ),
    Case(
        """CREATE OR REPLACE TABLE t (a TEXT DEFAULT "'SECRET /* by: x */", `b"` INT AS (1))""",
        [Dropped(T), Created(T)],
        (T, frozenset({'b"'})),
    ),
    Case(
        "CREATE TABLE [t] LIKE [c]", [Created(T)], (T, frozenset({KEPT})), modes=MSSQL, alike=True
    ),
    # --- a dot before a name, and names of several parts ---
    altered("ALTER TABLE .t DROP a, RENAME KEY b TO c", ["a"]),
    altered("ALTER TABLE t DROP .a, DROP COLUMN IF EXISTS .b", ["a", "b"])._replace(again=False),
    altered("ALTER TABLE t DROP t.a, DROP d.t.b", ["a", "b"])._replace(again=False),
    Case(
        "ALTER TABLE t CHANGE t.a z INT, MODIFY d.t.b INT, CHANGE COLUMN IF EXISTS c t.y INT",
        [Altered(T)],
        (T, frozenset({KEPT})),
        renamed=[("a", "z"), ("b", "b"), ("c", "y")],
        again=False,
    ),
    Case(
        "ALTER TABLE t ADD .a INT AS (1), ADD COLUMN (t.b INT AS (2) VIRTUAL, c INT)",
        [Altered(T)],
        (T, frozenset({KEPT, "a", "b"})),
        again=False,
    ),
    Case(
        "CREATE TABLE .t (.a INT AS (1) VIRTUAL, t.b INT AS (1), d.t.c INT AS (1), d INT)",
        [Created(T)],
        (T, frozenset("abc")),
        again=False,
    ),
    Case("CREATE TABLE IF NOT EXISTS .t LIKE .u", [Ensured(T)], (T, frozenset({KEPT})), alike=True),
    Case("TRUNCATE .t", [Emptied(T)]),
    Case("RENAME TABLE .t TO .u, e.c TO .t", [Renamed(T, U), Renamed(C, T)]),
    Case("DROP TABLE IF EXISTS .t, e . c", [Dropped(T), Dropped(C)]),
    # --- words of the language as names ---
    Case(
        "RENAME TABLE d.table TO d.to, e.to TO d.table",
        [Renamed(("d", "table"), ("d", "to")), Renamed(("e", "to"), ("d", "table"))],
    ),
    Case(
        "RENAME TABLE wait WAIT 2 TO nowait, nowait NOWAIT TO temporary",
        [Renamed(("d", "wait"), ("d", "nowait")), Renamed(("d", "nowait"), ("d", "temporary"))],
    ),
    Case("TRUNCATE d.table", [Emptied(("d", "table"))]),
    Case("DROP TABLES tables, temporary", [Dropped(("d", "tables")), Dropped(("d", "temporary"))]),
    Case("CREATE TABLE d.if (id INT)", [Created(("d", "if"))], (("d", "if"), NONE)),
    Case("CREATE TABLE d.select (`as` INT)", [Created(("d", "select"))], (("d", "select"), NONE)),
    Case(
        "CREATE TABLE t (`select` INT, CHECK (t.select > 0))", [Created(T)], (T, NONE), again=False
    ),
    Case("CREATE TABLE t (a TEXT CHECK (a LIKE 'SECRET%'))", [Created(T)], (T, NONE)),
    Case(
        "ALTER TABLE d.table RENAME d.rename",
        [Altered(("d", "table")), Renamed(("d", "table"), ("d", "rename"))],
        (("d", "table"), frozenset({KEPT})),
    ),
    # --- other forms ---
    Case(
        "ALTER TABLE IF EXISTS t WAIT 1 DROP a, RENAME TO e.c",
        [Altered(T), Renamed(T, C)],
        (T, frozenset({KEPT})),
        ["a"],
    ),
    Case(
        "CREATE TABLE t (a INT) COMMENT 'SECRET' REPLACE AS SELECT 1 AS a",
        [Created(T), OF_QUERY],
        (T, NONE),
        written=[T],
    ),
    Case("CREATE TABLE t (SELECT 1 AS a)", [Created(T), OF_QUERY], (T, NONE), written=[T]),
    Case("CREATE TABLE t AS TABLE u", [Created(T), OF_QUERY], (T, None), written=[T]),
    Case(
        "CREATE TABLE IF NOT EXISTS t VALUES ROW(1)",
        [Ensured(T), OF_QUERY],
        (T, frozenset({KEPT})),
        written=[T],
    ),
    Case(
        "CREATE TABLE `t` (\n  `a` int NOT NULL\n) START TRANSACTION COMMENT='SECRET'",
        [Created(T)],
        (T, NONE),
    ),
    Case(
        "CREATE TABLE t (a INT) PARTITION BY LIST (a) (PARTITION p VALUES IN (1))",
        [Created(T)],
        (T, NONE),
    ),
    Case("CREATE VECTOR INDEX i ON t (a)", [Altered(T)]),
    Case("CREATE TEMPORARY TABLE IF NOT EXISTS t (a INT AS (1) VIRTUAL)", [], written=[T]),
    Case("CREATE OR REPLACE SEQUENCE t", [Dropped(T)]),
    Case("DROP DATABASE IF EXISTS `e`", [DatabaseDropped("e")]),
    Case(
        "ALTER TABLE t CONVERT PARTITION p TO TABLE u",
        [Altered(T), RowsChanged(T, OUT), Created(U), RowsChanged(U, OUT)],
        (T, frozenset({KEPT})),
    ),
    Case(
        "ALTER TABLE t CONVERT TABLE u TO PARTITION p VALUES LESS THAN (9)",
        [Altered(T), RowsChanged(T, "CONVERT TABLE"), Dropped(U)],
        (T, frozenset({KEPT})),
    ),
    Case(
        "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE e.c",
        [Altered(T), RowsChanged(T, "EXCHANGE PARTITION"), RowsChanged(C, "EXCHANGE PARTITION")],
        (T, frozenset({KEPT})),
    ),
    Case("SET STATEMENT max_statement_time=1 FOR TRUNCATE t", [Emptied(T)]),
    Case(
        "SET STATEMENT max_statement_time=1 FOR CREATE TABLE t (a INT AS (1) VIRTUAL)",
        [Created(T)],
        (T, frozenset("a")),
    ),
]
