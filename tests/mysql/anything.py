"""Tables of any types, with rows of any values, and what the server itself says that they hold."""

import json
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from penstock.sources.mysql.connection import Connected
from tests.mysql.support import run
from tests_support.servers import MariaDbServer


class Kind(NamedTuple):
    """A type of column."""

    ddl: str
    values: st.SearchStrategy[Any]
    """To insert; the server makes what fits of what does not."""
    select: str
    """What to ask the server for, `{}` being the column."""
    written: Callable[[Any], Any]
    """What it answers, as the log is to have it."""
    place: str = "%s"
    """What stands for a value where one is written."""


def ints(bits: int, *, unsigned: bool) -> st.SearchStrategy[int]:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return st.sampled_from([low, high, 0, 1]) | st.integers(low, high)


def floats(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    return st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=False)


def decimal(value: str) -> dict[str, str]:
    return {"$numberDecimal": value}


def hexed(value: str) -> dict[str, Any]:
    from base64 import b64encode

    data = b64encode(bytes.fromhex(value)).decode()
    return {"$binary": {"base64": data, "subType": "00"}}


def instant(value: str) -> Any:
    if value.startswith("0000"):
        return value
    moment = datetime.fromisoformat(value).replace(tzinfo=UTC)
    digits = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return {"$date": f"{moment.replace(tzinfo=None).isoformat(timespec=digits)}Z"}


def members(value: str) -> list[str]:
    return value.split(",") if value else []


def shape(value: str) -> dict[str, Any]:
    srid, _, wkb = value.partition(":")
    return {"srid": int(srid), "wkb": hexed(wkb)}


def same(value: Any) -> Any:
    return value


CHAR = "CAST({} AS CHAR)"
years = st.sampled_from(["0000", "1000", "1970", "2026", "9999"])
months, days = st.sampled_from(["00", "01", "12"]), st.sampled_from(["00", "01", "28"])
dates = st.tuples(years, months, days).map("-".join) | st.dates().map(str)
clocks = st.times().map(lambda time: time.isoformat(timespec="microseconds"))
hours = st.integers(-838, 838).map(str)
times = st.tuples(hours, clocks.map(lambda text: text[3:])).map(":".join)
texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=20
) | st.sampled_from(["", " ", "a ", "ž", "\U0001f600", "'", '"', "\\", "x" * 300])
bmp = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=20)
latin = st.text(
    st.sampled_from([bytes([b]).decode("cp1252", "ignore") or chr(b) for b in range(1, 256)]),
    max_size=20,
)
blobs = st.binary(max_size=300)


def vectors(least: int, most: int) -> st.SearchStrategy[bytes]:
    """Of so many numbers, as servers keep them."""
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    return st.lists(numbers, min_size=least, max_size=most).map(
        lambda values: struct.pack(f"<{len(values)}f", *values)
    )


def kinds() -> list[Kind]:
    found = [
        Kind(f"{name}{' UNSIGNED' if unsigned else ''}", ints(bits, unsigned=unsigned), CHAR, int)
        for name, bits in (
            ("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64),
        )
        for unsigned in (False, True)
    ]  # fmt: skip
    found += [
        Kind(f"BIT({n})", ints(n, unsigned=True), CHAR.format("{}+0"), int) for n in (1, 9, 64)
    ]
    found += [
        Kind("INT(5) ZEROFILL", ints(32, unsigned=True), CHAR.format("{}+0"), int),
        Kind("BOOLEAN", st.booleans(), CHAR, int),
        Kind("YEAR", st.sampled_from([0, 1901, 1970, 2026, 2155]), CHAR, int),
    ]
    for precision, scale in ((1, 0), (5, 2), (9, 9), (10, 0), (19, 10), (38, 9), (65, 30), (65, 0)):
        limit = Decimal(10) ** (precision - scale)
        numbers = st.decimals(-limit, limit, places=scale, allow_nan=False) | st.sampled_from(
            [Decimal(0), limit, -limit, Decimal("-0.5"), Decimal("0.05")]
        )
        found.append(Kind(f"DECIMAL({precision},{scale})", numbers.map(str), CHAR, decimal))
    found.append(
        Kind("DECIMAL(10,3) UNSIGNED", st.decimals(0, 9999, places=3).map(str), CHAR, decimal)
    )
    found += [
        Kind("FLOAT", floats(32), "CAST({} AS DOUBLE)", same),
        Kind("DOUBLE", floats(64), "{}", same),
        Kind("DATE", dates, CHAR, same),
        Kind("ENUM('a','b c','ž','')", st.sampled_from(["a", "b c", "ž", "", "no"]), "{}", same),
        Kind("ENUM('a','é') CHARACTER SET latin1", st.sampled_from(["a", "é"]), "{}", same),
        Kind(f"ENUM({','.join(repr(str(n)) for n in range(300))})", st.integers(0, 299).map(str),
             "{}", same),
        Kind("SET('x','y','ž')", st.sampled_from(["", "x", "ž,x", "x,y,ž"]), "{}", members),
        Kind(f"SET({','.join(repr(str(n)) for n in range(64))})",
             st.sets(st.integers(0, 63)).map(lambda some: ",".join(map(str, some))), "{}", members),
        Kind("JSON", st.sampled_from(['{"a": [1, 2.50, null]}', "[]", '"ž"', "1"]), "{}", same),
        Kind("UUID", st.uuids().map(str), "HEX(CAST({} AS BINARY(16)))", hexed),
        Kind("INET4", st.ip_addresses(v=4).map(str), "HEX(CAST({} AS BINARY(4)))", hexed),
        Kind("INET6", st.ip_addresses(v=6).map(str), "HEX(CAST({} AS BINARY(16)))", hexed),
    ]  # fmt: skip
    for digits in range(7):
        found += [
            Kind(f"TIME({digits})", times, CHAR, same),
            Kind(f"DATETIME({digits})", st.builds("{} {}".format, dates, clocks), CHAR, same),
            Kind(f"TIMESTAMP({digits})",
                 st.just("0000-00-00 00:00:00") | st.datetimes(
                     datetime(1970, 1, 2), datetime(2038, 1, 18)).map(str), CHAR, instant),  # noqa: DTZ001
        ]  # fmt: skip
    for charset, values in (
        ("utf8mb4", texts), ("utf8mb3", bmp), ("latin1", latin), ("ucs2", bmp), ("utf16", texts),
        ("utf16le", texts), ("utf32", texts), ("ascii", st.text(st.characters(codec="ascii"))),
    ):  # fmt: skip
        for ddl in ("CHAR(60)", "VARCHAR(20)", "VARCHAR(300)", "TEXT"):
            found.append(Kind(f"{ddl} CHARACTER SET {charset}", values, "{}", same))
    for ddl in ("TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "VARCHAR(100) COMPRESSED", "TEXT COMPRESSED"):
        found.append(Kind(ddl, texts, "{}", same))
    for ddl in (
        "BINARY(5)", "BINARY(255)", "VARBINARY(5)", "VARBINARY(400)", "TINYBLOB", "BLOB",
        "MEDIUMBLOB", "LONGBLOB", "BLOB COMPRESSED", "VARBINARY(300) COMPRESSED",
        "CHAR(20) CHARACTER SET binary",
    ):  # fmt: skip
        found.append(Kind(ddl, blobs | st.sampled_from([b"", b"\0", b"a\0\0"]), "HEX({})", hexed))
    return found


KINDS = kinds()
POINT = Kind(
    "GEOMETRY",
    st.sampled_from(["POINT(1 2)", "LINESTRING(0 0,1 1,2 3)", "POLYGON((0 0,1 0,1 1,0 0))"]),
    "CONCAT(ST_SRID({0}), ':', HEX(ST_AsBinary({0})))",
    shape,
    "ST_GeomFromText(%s, 4326)",
)

_LATER = [
    Kind("VECTOR(5)", vectors(5, 5), "HEX({})", hexed),
    *(
        Kind(
            f"TIMESTAMP({digits})",
            st.datetimes(datetime(2038, 1, 18), datetime(2106, 2, 7, 6, 28, 15)).map(str),  # noqa: DTZ001
            CHAR,
            instant,
        )
        for digits in (0, 3, 6)
    ),
]


def kinds_of(mariadb: MariaDbServer) -> list[Kind]:
    """All types that a MariaDB has."""
    return [*KINDS, POINT, *(_LATER if mariadb.version != "system" else [])]


class AnyTable(NamedTuple):
    """A table to be made, and its rows."""

    columns: list[tuple[Kind, bool]]
    """Each with whether it may be NULL."""
    rows: list[list[Any]]
    updates: list[tuple[int, list[Any]]]
    """Rows by their number, and what they become."""

    def make(self, db: Connected, name: str) -> None:
        """Create it, and write its rows as one statement of many rows, then one by one."""
        ddl = [f"c{i} {kind.ddl} {'NULL' if null else 'NOT NULL'}" for i, (kind, null) in
               enumerate(self.columns)]  # fmt: skip
        run(db, f"CREATE TABLE {name} (id INT PRIMARY KEY, {', '.join(ddl)})")
        places = [kind.place for kind, _ in self.columns]
        with db.cursor() as cursor:
            if self.rows:
                one = f"(%s, {', '.join(places)})"
                cursor.execute(
                    f"INSERT IGNORE INTO {name} VALUES {', '.join([one] * len(self.rows))}",
                    [v for number, row in enumerate(self.rows) for v in (number, *row)],
                )
            sets = ", ".join(f"c{i} = {place}" for i, place in enumerate(places))
            for number, row in self.updates:
                cursor.execute(f"UPDATE IGNORE {name} SET {sets} WHERE id = %s", [*row, number])

    def told(self, db: Connected, name: str) -> dict[int, dict[str, Any]]:
        """What the server says that it holds, as the log is to have it."""
        asked = ", ".join(kind.select.format(f"c{i}") for i, (kind, _) in enumerate(self.columns))
        found: dict[int, dict[str, Any]] = {}
        for number, *row in run(db, f"SELECT id, {asked} FROM {name}"):
            found[number] = {"id": number} | {
                f"c{i}": None if value is None else self.columns[i][0].written(value)
                for i, value in enumerate(row)
            }
        return found


@st.composite
def tables(draw: st.DrawFn, kinds: Sequence[Kind] = (*KINDS, POINT)) -> AnyTable:
    """A table of one to ten columns, a few rows, and a few updates of them."""
    kind = st.sampled_from(kinds)
    columns = draw(st.lists(st.tuples(kind, st.booleans()), min_size=1, max_size=10))
    one = st.tuples(
        *(st.none() | kind.values if null else kind.values for kind, null in columns)
    ).map(list)
    rows = draw(st.lists(one, max_size=4))
    updates = draw(st.lists(st.tuples(st.integers(0, 3), one), max_size=4))
    return AnyTable(columns, rows, updates)


def normal(value: Any) -> Any:
    """For comparison: told apart as JSON tells apart, so that 1 is not 1.0."""
    return json.dumps(value, sort_keys=True)
