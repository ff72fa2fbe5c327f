"""Which tables a statement that changes rows may write to, and what else it may run. Pure.

More tables may be named than it writes to, never fewer. A stored function that it calls, or that a
view calls which it reads, may write to any table, and so may a trigger.
Sources: the documentation of MySQL and MariaDB, "INSERT", "UPDATE", "DELETE", "WITH", "Function
Name Parsing and Resolution", "Built-in Function and Operator Reference".
"""

import re
from typing import Final

from msgspec import Struct

from penstock.mysql_sql.tokens import body, significant, tokens
from penstock.sources.mysql.statements import Name, Reader, UnclearError


class Written(Struct, frozen=True):
    """What a statement changes, as far as its text tells."""

    tables: tuple[Name, ...] = ()
    """None: that cannot be told."""
    read: tuple[Name, ...] = ()
    """The other tables or views that it reads."""
    calls: bool = True
    """Whether it may call a stored function, itself or by a view that is not in `read`."""


_MODIFIERS: Final = ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE")
_AFTER_REFERENCES: Final = frozenset({"WHERE", "SET"})
_AFTER_FROM: Final = _AFTER_REFERENCES | {"GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "UPDATE"}
_JOINS: Final = frozenset({"JOIN", "STRAIGHT_JOIN"})
_QUERIES: Final = frozenset({"SELECT", "WITH", "TABLE", "VALUES"})
_WORDS: Final = """
    ( ) , = < > ! + - * / % & | ^ ~ . AND OR NOT XOR IN EXISTS ANY SOME ALL AS BETWEEN BY CASE
    DISTINCT DIV ELSE FROM GROUP HAVING IF INDEX INTERVAL INTO IS JOIN KEY LIKE LIMIT MOD OFFSET
    ON PARTITION REGEXP RLIKE ROW SELECT SET THEN UNION USING VALUE VALUES WHEN WHERE WITH
    BINARY CHAR DECIMAL VARCHAR FORCE USE UPDATE
"""
_FUNCTIONS: Final = """
    ABS ADDDATE ADDTIME ASCII AVG BIN BIT_AND BIT_LENGTH BIT_OR BIT_XOR CAST CEIL CEILING
    CHAR_LENGTH CHARACTER_LENGTH CHARSET COALESCE COMPRESS CONCAT CONCAT_WS CONNECTION_ID CONV
    CONVERT CONVERT_TZ COUNT CRC32 CURDATE CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP
    CURRENT_USER CURTIME DATABASE DATE DATEDIFF DATE_ADD DATE_FORMAT DATE_SUB DAY ELT EXTRACT
    FIELD FIND_IN_SET FLOOR FORMAT FROM_BASE64 FROM_DAYS FROM_UNIXTIME GREATEST GROUP_CONCAT HEX
    HOUR IFNULL INET_ATON INET_NTOA INSERT INSTR ISNULL JSON_ARRAY JSON_EXTRACT JSON_OBJECT
    JSON_UNQUOTE LAST_DAY LAST_INSERT_ID LCASE LEAST LEFT LENGTH LOCATE LOWER LPAD LTRIM MAX MD5
    MICROSECOND MID MIN MINUTE MONTH NAME_CONST NOW NULLIF OCT ORD POSITION POW POWER QUARTER QUOTE
    RAND REPEAT REPLACE REVERSE RIGHT ROUND RPAD RTRIM SCHEMA SECOND SHA SHA1 SHA2 SIGN SLEEP SQRT
    STRCMP STR_TO_DATE SUBDATE SUBSTR SUBSTRING SUBSTRING_INDEX SUM SYSDATE TIME TIMEDIFF
    TIMESTAMP TIMESTAMPADD TIMESTAMPDIFF TO_BASE64 TO_DAYS TO_SECONDS TRIM TRUNCATE UCASE UNHEX
    UNIX_TIMESTAMP UPPER USER UTC_DATE UTC_TIME UTC_TIMESTAMP UUID UUID_SHORT VERSION WEEK
    WEEKDAY YEAR
"""
"""Of the servers' own, which no stored function hides."""
_NO_CALL: Final = frozenset([*_WORDS.split(), *_FUNCTIONS.split()])
"""What a parenthesis may follow without a stored function being called."""
_APART: Final = re.compile(
    r"\b(?:ADDDATE|BIT_AND|BIT_OR|BIT_XOR|CAST|COUNT|CURDATE|CURTIME|DATE_ADD|DATE_SUB|EXTRACT|"
    r"GROUP_CONCAT|MAX|MID|MIN|NOW|POSITION|SUBDATE|SUBSTR|SUBSTRING|SUM|SYSDATE|TRIM)"
    r"(?:\s|/\*.*?\*/|(?:--|\#)[^\n]*\n)+\(",
    re.IGNORECASE | re.DOTALL,
)
"""Functions whose names are a stored one's where anything comes before the parenthesis."""


def written(statement: str, *, database: str, lowers: bool = False, sql_mode: str = "") -> Written:
    """What a statement changes; `database`, `lowers` and `sql_mode` are as of `effects`."""
    found = body(significant(tokens(statement, sql_mode)))
    if found and found[-1].kind == "open":
        return Written()  # as of `effects`
    reader = Reader(found, database, lowers=lowers)
    try:
        verb = reader.word()
        first = reader.at
        if verb == "WITH":
            verb = _behind_with(reader)
        began = reader.at
        tables, listed = _tables(verb, reader)
    except UnclearError:
        return Written()
    behind = reader.at
    calls = _calls(reader, first, listed) or _APART.search(statement) is not None
    try:
        read = *_read(reader, first, began), *_read(reader, behind, len(found))
    except UnclearError:
        return Written(tables)
    return Written(tables, read, calls)


def _tables(verb: str, reader: Reader) -> tuple[tuple[Name, ...], int]:
    """The tables, which are taken with all between them, and where a list of the columns of the
    first may stand."""
    if verb == "CREATE":
        reader.skip_to("TABLE")
        reader.take("IF", "NOT", "EXISTS")
        return (reader.table(),), reader.at
    reader.take_any(*_MODIFIERS)
    if verb in {"INSERT", "REPLACE"}:
        reader.take("INTO")
        return (reader.table(),), reader.at
    if verb == "UPDATE":
        return _references(reader), 0
    if verb != "DELETE":
        raise UnclearError(verb)
    return _of_delete(reader), 0


def _of_delete(reader: Reader) -> tuple[Name, ...]:
    # Each may be the name of a table instead: DELETE history FROM a JOIN history ...
    may_be_named = reader.take("QUICK") or reader.take("HISTORY")
    reader.take("IGNORE")
    if not reader.take("FROM"):
        reader.skip_to("FROM")
        return _references(reader)
    start = reader.at
    table = reader.table()
    if reader.peek() == "USING" or (not may_be_named and reader.peek() in {",", "."}):
        reader.skip_to("USING")
        return _references(reader)
    if not may_be_named:
        return (table,)
    reader.at = start
    return _references(reader)


def _behind_with(reader: Reader) -> str:
    """The verb behind the queries that WITH names."""
    depth = 0
    while reader.at < len(reader.tokens):
        word = reader.word()
        depth += (word == "(") - (word == ")")
        if not depth and word in {"UPDATE", "DELETE", "INSERT", "REPLACE", "SELECT"}:
            return word
    raise UnclearError("WITH")


def _references(reader: Reader) -> tuple[Name, ...]:
    """The tables that stand here, between commas and in joins, whatever is done to them. Raises
    UnclearError where a query is among them."""
    found: list[Name] = []
    comes = True
    depth = inside = 0
    """Of all parentheses, and of those that are not around tables."""
    while reader.at < len(reader.tokens):
        if reader.peek() in _QUERIES:
            raise UnclearError("a query among the tables")
        if comes and reader.peek() != "(":
            found.append(reader.table())
            comes = False
            continue
        if not comes and not depth and reader.peek() in _AFTER_REFERENCES:
            break
        word = reader.word()
        if word == "(":
            depth += 1
            inside += not comes
        elif word == ")":
            depth -= 1
            inside -= inside > 0
        elif not inside:
            comes = word in _JOINS or word == ","
    return tuple(found)


def _calls(reader: Reader, first: int, listed: int) -> bool:
    """Whether a function is called that may be a stored one."""
    words = [token.word for token in reader.tokens]
    return any(
        words[at] == "("
        and at != listed
        and (words[at - 1] not in _NO_CALL or (words[at - 2] == "." and words[at - 1] != ")"))
        for at in range(max(first, 1), len(words))
    )


def _read(reader: Reader, first: int, end: int) -> tuple[Name, ...]:
    """The tables or views that are read here. Raises UnclearError where that is not certain."""
    found: list[Name] = []
    for at in range(first, end):
        reader.at = at
        word = reader.word()
        if word == "TABLE":
            raise UnclearError("a query that names its table alone")
        if word != "FROM" and word not in _JOINS:
            continue
        if reader.peek() == "(":
            if reader.peek(1) not in _QUERIES:
                raise UnclearError("tables in parentheses")
        elif reader.peek() != "DUAL":
            found.append(reader.table())
        if word == "FROM":
            _no_comma(reader)
    return tuple(found)


def _no_comma(reader: Reader) -> None:
    """Raises UnclearError if a table follows behind a comma in this FROM, and not in a join."""
    depth = 0
    while depth >= 0 and reader.at < len(reader.tokens):
        word = reader.word()
        depth += (word == "(") - (word == ")")
        if depth == 0 and word == ",":
            raise UnclearError(",")
        if depth == 0 and word in _AFTER_FROM:
            return
        if word == "FOR" and reader.peek() in {"ORDER", "GROUP"}:
            reader.word()  # of an index: FORCE INDEX FOR ORDER BY (i)
