"""Statements of a trail that change tables, with every table in them named by its database. Pure.

What was done to `shop.orders` then must not be done to it now. So names are put into the databases
that they are to be in, and a statement in which a name may be left, or be of another database than
it seems, is refused. A name without its database is of the session's, which is that of the
statement's table where that has none either, and else what the trail says it was; what REFERENCES
names is of the table's own database.

What a backslash, `"` and `||` are is said by the sql_mode in which a statement was written.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from penstock.audit.fold import Name, name_of
from penstock.mysql_sql.tokens import Token, body, significant, tokens
from penstock.sources.mysql.restoring.columns import quoted
from penstock.sources.mysql.statements import queries

Place = Callable[[Name], Name]
"""Where a table of the trail is to be."""


_BEFORE_NAME: Final = frozenset({"IF", "NOT", "EXISTS"})
_BEFORE_TABLE: Final = frozenset({"WITH", "CONVERT", "TO"})
"""Of EXCHANGE PARTITION, and of what makes a table of one, or one of a table."""
_AFTER_RENAME: Final = frozenset({"COLUMN", "INDEX", "KEY", "CONSTRAINT"})


class UnclearStatementError(ValueError):
    """A statement whose tables cannot be told."""


class Restated(NamedTuple):
    """A statement for tables that are elsewhere."""

    text: str
    sql_mode: str = ""
    """The modes without which it would mean something else."""


def restated(record: Mapping[str, Any], to: Place) -> Restated | None:
    """The statement of a record (`op` ddl), for tables that are to be elsewhere; None if the record
    says what another one of the same statement says too.

    Raises UnclearStatementError.
    """
    said: Mapping[str, Any] = record.get("said") or {}
    operation = said.get("operation")
    if operation is None:
        raise UnclearStatementError("a statement that was erased")
    name = name_of(record)
    if operation == "drop":
        if "truncated" in said:
            return None
        return Restated(f"DROP TABLE IF EXISTS {quoted(*to(name))}")
    if operation == "create" and "truncated" in said:
        return Restated(f"TRUNCATE TABLE {quoted(*to(name))}")
    if operation == "rename":
        other = (said["to"]["db"], said["to"]["coll"])
        if not said.get("targetCaptured", True):
            return Restated(f"DROP TABLE IF EXISTS {quoted(*to(name))}")
        return Restated(f"RENAME TABLE {quoted(*to(name))} TO {quoted(*to(other))}")
    if operation in {"create", "modify"}:
        text, modes = str(said.get("statement", "")), said.get("sqlMode")
        session, makes = said.get("sessionDatabase"), operation == "create"
        renamed = _renamed(text, modes, name[0], to, session=session, makes=makes)
        return Restated(renamed, modes or "")
    raise UnclearStatementError(f"a statement that is a {operation}")


def recreated(statement: str, modes: str | None, made_as: Name, name: Name, to: Place) -> Restated:
    """The statement that made the table `made_as`, for a table `name`; what it refers to is where
    `to` says. `modes` are those in which it was written, None where that is not said.

    Raises UnclearStatementError; also for one that makes a table like another, which is what that
    one was then.
    """
    said = body(significant(tokens(statement, modes or "")))
    if any(_makes_alike(said, at, depth) for at, depth in enumerate(_depths(said))):
        raise UnclearStatementError("a statement that makes a table like another")

    def elsewhere(one: Name) -> Name:
        return name if one == made_as else to(one)

    text = _renamed(statement, modes, made_as[0], elsewhere, makes=True)
    # The table is made only where there is none, so nothing is to be replaced.
    words = body(significant(tokens(text, modes or "")))
    if [one.word for one in words[:3]] == ["CREATE", "OR", "REPLACE"]:
        text = text[: words[1].start] + text[words[2].end :].lstrip()
    return Restated(text, modes or "")


class _Resolver:
    """Which databases the names of a statement are of."""

    def __init__(self, database: str, session: str | None) -> None:
        """`database` is that of the statement's own table, the first that it names."""
        self._database = database
        self._session = session
        self._is_first = True

    def name(self, qualifier: str | None, name: str, *, is_reference: bool) -> Name:
        """The next name. Raises UnclearStatementError."""
        is_first, self._is_first = self._is_first, False
        if is_first and qualifier is None:
            self._session = self._database
        if qualifier is not None:
            return qualifier, name
        if is_reference or is_first:
            return self._database, name
        if self._session is None:
            raise UnclearStatementError(
                "a statement with a table's name in the session's database, which is not known"
            )
        return self._session, name


def _renamed(
    statement: str,
    modes: str | None,
    database: str,
    to: Place,
    *,
    session: str | None = None,
    makes: bool,
) -> str:
    """`makes`: the trail says that it made its table."""
    words = significant(tokens(statement, modes or ""))
    pairs = pairwise(words)
    if modes is None and any(a.word == b.word == "|" and a.end == b.start for a, b in pairs):
        raise UnclearStatementError("a statement with ||, in a session whose sql_mode is not known")
    if words and words[-1].kind == "open":
        raise UnclearStatementError("a statement with a quote or comment that does not end")
    if any(one.word == "?" for one in words):
        raise UnclearStatementError("a statement that was captured without its values")
    words = [*body(words)]
    verb = words[0].word if words else ""
    if verb not in {"CREATE", "ALTER", "DROP"}:
        # None, and what a future server may write.
        raise UnclearStatementError(f"a statement that begins with {verb or 'nothing'}")
    if makes and not _makes_a_table(words):
        # That of another table, a part of which it was: ALTER TABLE ... CONVERT PARTITION.
        raise UnclearStatementError(f"a table that was made by {verb}")
    if _makes_a_table(words) and queries(words[2:] if words[1].word == "TABLE" else words[4:]):
        raise UnclearStatementError("a statement that makes a table of a query")
    places: list[tuple[int, int, str]] = []
    if verb == "CREATE":
        places += _transaction(words)
    resolver = _Resolver(database, session)
    depths = _depths(words)
    at, first = 1, True
    while at < len(words):
        word = words[at].word
        at += 1
        if not _leads_to_a_table(verb, words, at - 1, depths[at - 1], first=first):
            continue
        first = first and word not in {"TABLE", "ON"}
        while at < len(words) and words[at].word in _BEFORE_NAME:
            at += 1
        if word == "RENAME" and at < len(words) and words[at].word in {"TO", "AS", "="}:
            at += 1
        named = partial(resolver.name, is_reference=word == "REFERENCES")
        at = _name_at(words, at, named, to, places)
    if first:
        raise UnclearStatementError(f"{verb} of something else than a table")
    return _with(statement, words, places)


def _depths(words: Sequence[Token]) -> list[int]:
    """In how many parentheses each is; one that opens is in its own."""
    return [*accumulate((one.word == "(") - (one.word == ")") for one in words)]


def _makes_a_table(words: Sequence[Token]) -> bool:
    begin = [one.word for one in words[:4]]
    return begin[:2] == ["CREATE", "TABLE"] or begin == ["CREATE", "OR", "REPLACE", "TABLE"]


def _makes_alike(words: Sequence[Token], at: int, depth: int) -> bool:
    """Whether it is the LIKE of CREATE TABLE a LIKE b, or (LIKE b); elsewhere it is an operator."""
    inside = depth == 1 and words[at - 1].word == "("
    return words[at].word == "LIKE" and (depth == 0 or inside)


def _transaction(words: Sequence[Token]) -> list[tuple[int, int, str]]:
    """What is left out of CREATE TABLE ... SELECT as MySQL logs it, before its COMMENT and other
    options: the rows, which follow, are of its transaction."""
    depths = _depths(words)
    return [
        (words[at - 1].end, two.end, "")
        for at, (one, two) in enumerate(pairwise(words))
        if not depths[at] and (one.word, two.word) == ("START", "TRANSACTION")
    ]


def _leads_to_a_table(
    verb: str, words: Sequence[Token], at: int, depth: int, *, first: bool
) -> bool:
    """Whether a table's name comes next."""
    word = words[at].word
    if word == "REFERENCES":
        return True
    if word == "LIKE":
        return verb == "CREATE" and _makes_alike(words, at, depth)
    if depth:
        return False
    if word == "TABLE" and (first or words[at - 1].word in _BEFORE_TABLE):
        return True
    if word == "ON" and first:
        return any(one.word == "INDEX" for one in words[:at])
    following = words[at + 1].word if at + 1 < len(words) else ""
    return verb == "ALTER" and word == "RENAME" and following not in _AFTER_RENAME


def _name_at(
    words: Sequence[Token],
    at: int,
    named: Callable[[str | None, str], Name],
    to: Place,
    places: list[tuple[int, int, str]],
) -> int:
    """Put the name that stands at `at` where it is to be; returns what comes behind it."""
    start, qualifier = words[at].start if at < len(words) else 0, None
    if at < len(words) and words[at].word == ".":
        at += 1  # MariaDB takes `.a` for a name in the session's database
    if at >= len(words) or not words[at].is_name:
        raise UnclearStatementError("a statement without the name of a table in its place")
    if at + 2 < len(words) and words[at + 1].word == "." and words[at + 2].is_name:
        qualifier = words[at].name
        at += 2
    places.append((start, words[at].end, quoted(*to(named(qualifier, words[at].name)))))
    return at + 1


def _with(statement: str, words: Sequence[Token], places: list[tuple[int, int, str]]) -> str:
    """The statement with these names in their places, and no other name with a database."""
    for at, word in enumerate(words[1:-1], 1):
        inside = any(start <= word.start < end for start, end, _ in places)
        if word.word == "." and not inside and words[at - 1].is_name and words[at + 1].is_name:
            raise UnclearStatementError("a statement with a name in a place that is not known")
    pieces: list[str] = []
    done = 0
    for start, end, name in sorted(places):
        pieces += [statement[done:start], name]
        done = end
    return "".join([*pieces, statement[done:]])
