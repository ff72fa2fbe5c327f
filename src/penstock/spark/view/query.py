"""The query of a view: read, taken apart, and refused where it is more than a view can keep. Pure.

What a view can keep: one SELECT over a collection and others joined to it (inner or left), each
once; WHERE; GROUP BY; count, sum, avg, min and max; and expressions whose value depends on nothing
but their row.
"""

# sqlglot leaves the types of an expression's arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

import re
from collections.abc import Mapping
from typing import Any, Final

import sqlglot
from msgspec import Struct
from sqlglot import errors, exp

from penstock.spark.table.kinds import Kind
from penstock.spark.table.plan import OWN_COLUMNS, REJECTED
from penstock.spark.view.dialect import AS_WRITTEN, ViewSpark
from penstock.spark.view.moments import is_moment, of_moment

DIALECT: Final = ViewSpark
_PLAIN: Final = re.compile(r"[^_\s,;{}()=`][^\s,;{}()=`]*")

AGGREGATES: Final[dict[type[exp.Expression], str]] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}

_SCALARS: Final = frozenset(
    {
        *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Var),
        *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
        *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.Is, exp.Between),
        *(exp.And, exp.Or, exp.Not, exp.In, exp.Like, exp.RegexpLike, exp.Case, exp.If),
        *(exp.Coalesce, exp.Nullif, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam),
        *(exp.Upper, exp.Lower, exp.Trim, exp.Substring, exp.Length, exp.Concat),
        *(exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.Sign, exp.Greatest, exp.Least),
        *(exp.Hour, exp.Extract),
    }
)
"""What an expression may be made of: each is a function of its row."""

_CLAUSES: Final = frozenset({"expressions", "from_", "joins", "where", "group", "kind"})
_CLAUSE_NAMES: Final = {
    "with_": "WITH",
    "distinct": "DISTINCT",
    "having": "HAVING",
    "order": "ORDER BY",
    "sort": "SORT BY",
    "limit": "LIMIT",
    "windows": "WINDOW",
    "laterals": "LATERAL VIEW",
}
_SUPPORTED: Final = (
    "A view is one SELECT of count, sum, avg, min, max and of what it is grouped by, FROM a "
    "collection, with JOIN or LEFT JOIN ... ON others, WHERE and GROUP BY"
)
_SCALARS_SAID: Final = (
    "Supported are columns, literals, arithmetic, comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, "
    "RLIKE, IS NULL, CASE, if, coalesce, nullif, cast, try_cast, concat, upper, lower, trim, "
    "substring, length, abs, round, floor, ceil, sign, greatest, least, year, month, day, hour, "
    "extract, date_trunc, to_date, get_json_object"
)
_TYPES: Final = {
    "BOOLEAN": Kind.BOOL,
    "INT": Kind.INT32,
    "BIGINT": Kind.INT64,
    "DOUBLE": Kind.DOUBLE,
    "DECIMAL(38, 18)": Kind.DECIMAL,
    "STRING": Kind.STRING,
    "TIMESTAMP": Kind.TIMESTAMP,
    "BINARY": Kind.BINARY,
    "VARIANT": Kind.JSON,
}


class Joined(Struct, frozen=True, kw_only=True):
    """A collection of the query."""

    collection: str
    alias: str
    join: str = ""
    """INNER or LEFT; empty for the main collection."""
    on: str = ""
    columns: tuple[str, ...] = ()
    """What the query needs of it, beside OWN_COLUMNS."""


class Aggregate(Struct, frozen=True, kw_only=True):
    """One aggregate of the query."""

    function: str
    argument: int | None
    """Which of the query's arguments; None for count(*)."""


class ViewQuery(Struct, frozen=True, kw_only=True):
    """A query taken apart; its parts are SQL of Spark."""

    tables: tuple[Joined, ...]
    """The main collection first."""
    where: str | None
    groups: tuple[str, ...]
    arguments: tuple[str, ...]
    """What is aggregated, each once."""
    aggregates: tuple[Aggregate, ...]
    outputs: tuple[tuple[str, str], ...]
    """Name and expression of each column, over `_g0`, ... (groups) and `_a0`, ... (aggregates)."""
    written: str
    """The query itself."""
    read: str
    """The query as it was read, whole."""

    @property
    def collections(self) -> tuple[str, ...]:
        return tuple(table.collection for table in self.tables)

    @property
    def main_where(self) -> str | None:
        """Those conditions of `where` that read no other than the main collection; None if none
        does. What they exclude is never joined."""
        if self.where is None:
            return None
        where = sqlglot.parse_one(self.where, dialect=DIALECT)
        own = self.tables[0].alias.lower()
        some = [
            one.sql(dialect=DIALECT)
            for one in (where.flatten() if isinstance(where, exp.And) else (where,))
            if all(column.table.lower() == own for column in one.find_all(exp.Column))
        ]
        return " AND ".join(f"({one})" for one in some) or None


def parse_query(text: str) -> ViewQuery:
    """Take a query apart. Raises ValueError that names what cannot be kept, and what can."""
    try:
        statements = sqlglot.parse(text, dialect=DIALECT)
    except errors.SqlglotError as error:
        raise ValueError(f"the query is no SQL that Spark reads: {error}") from None
    if len(statements) != 1 or not isinstance(select := statements[0], exp.Select):
        raise ValueError(f"the query is not one SELECT. {_SUPPORTED}")
    for clause, value in select.args.items():
        if value and clause not in _CLAUSES:
            _refuse(_CLAUSE_NAMES.get(clause, clause.upper()))
    if select.args.get("kind"):
        _refuse(f"SELECT AS {select.args['kind']}")
    tables = _tables(select)
    _qualify(select, [alias for _, alias, _, _ in tables])
    where = select.args.get("where")
    if where is not None:
        _check_scalar(where.this, "WHERE")
    for _, alias, _, on in tables:
        if on is not None:
            _check_scalar(on, f"the join of {alias}")
    groups = _groups(select)
    outputs = _Outputs(groups)
    named: dict[str, str] = {}
    for projection in select.expressions:
        name = projection.output_name
        if not name or isinstance(projection, exp.Star):
            raise ValueError(f"{_said(projection)} has no name; write {_said(projection)} AS name")
        if not _PLAIN.fullmatch(name):
            raise ValueError(
                f"a view's column cannot be called {name!r}: those that begin with _ are "
                f"Penstock's own, and files hold none with a space or one of ,;{{}}()=`"
            )
        if name.lower() in {one.lower() for one in named}:
            raise ValueError(f"two columns of the query are called {name}")
        named[name] = outputs.expression(projection.unalias())
    for group in groups:
        if isinstance(group, exp.Column) and _shadowed(select, group):
            _refuse_shadowed(group)
    needed = _needed(select)
    return ViewQuery(
        tables=tuple(
            Joined(
                collection=collection,
                alias=alias,
                join=join,
                on="" if on is None else _sql(on),
                columns=tuple(sorted(needed.get(alias.lower(), {}).values())),
            )
            for collection, alias, join, on in tables
        ),
        where=None if where is None else _sql(where.this),
        groups=tuple(map(_sql, groups)),
        arguments=tuple(outputs.arguments),
        aggregates=tuple(outputs.aggregates),
        outputs=tuple(named.items()),
        written=text,
        # As often as its parts are read again.
        read=sqlglot.transpile(_sql(select), read=DIALECT, write=DIALECT)[0],
    )


def parse_columns(collection: str, ddl: str) -> dict[str, Kind]:
    """The columns of a `schema` as kinds, by name. Raises ValueError for what a table has not."""
    try:
        parsed = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect=DIALECT)
    except errors.SqlglotError as error:
        raise ValueError(f"the schema of {collection} is no list of columns: {error}") from None
    columns: dict[str, Kind] = {}
    for column in parsed.this.expressions:
        kind = column.args.get("kind") if isinstance(column, exp.ColumnDef) else None
        if kind is None or column.args.get("constraints"):
            raise ValueError(f"the schema of {collection}: write name TYPE, not {_said(column)}")
        known = _TYPES.get(_sql(kind))
        if known is None:
            raise ValueError(
                f"the schema of {collection}: {column.name} cannot be {_sql(kind)}; the types of a "
                f"table are {', '.join(_TYPES)} (VARIANT: objects and arrays, as JSON text)"
            )
        if column.name.lower() in {one.lower() for one in (*columns, *OWN_COLUMNS.names)}:
            raise ValueError(f"the schema of {collection}: {column.name} is there already")
        columns[column.name] = known
    return columns


def type_said(kind: Kind | None) -> str:
    """What a `schema` calls a kind."""
    if kind is Kind.OBJECT_ID:
        return "STRING"
    return next((said for said, one in _TYPES.items() if one is kind), "of a type of its own")


def check_columns(query: ViewQuery, schema: Mapping[str, Mapping[str, Kind]]) -> None:
    """Refuse a column that a declared schema has not. Raises ValueError."""
    for name in schema:
        if name not in query.collections:
            raise ValueError(f"the query does not read {name}, of which there is a schema")
    for table in query.tables:
        if table.collection not in schema:
            continue
        known = {one.lower() for one in (*schema[table.collection], *OWN_COLUMNS.names)}
        for column in table.columns:
            if column.lower() not in known:
                raise ValueError(
                    f"the schema of {table.collection} has no column {column}, which the query "
                    f"reads; it has {', '.join(schema[table.collection])}"
                )


def columns_of(expression: str) -> set[str]:
    """The columns that an expression of the query reads, by their own names."""
    parsed = sqlglot.parse_one(expression, dialect=DIALECT)
    return {column.name for column in parsed.find_all(exp.Column)}


# --- parts --------------------------------------------------------------------------------------


def _tables(select: exp.Select) -> list[tuple[str, str, str, exp.Expression | None]]:
    from_ = select.args.get("from_")
    if from_ is None:
        raise ValueError(f"the query has no FROM. {_SUPPORTED}")
    tables: list[tuple[str, str, str, exp.Expression | None]] = [(*_table(from_.this), "", None)]
    for join in select.args.get("joins") or ():
        side, kind = join.side.upper(), join.kind.upper()
        on = join.args.get("on")
        if join.method or side not in {"", "LEFT"} or kind not in {"", "INNER", "OUTER"}:
            _refuse(" ".join(filter(None, (join.method, side, kind, "JOIN"))))
        if on is None or on == exp.true():
            _refuse("a join without ON")
        tables.append((*_table(join.this), side or "INNER", on))
    for names, what in ((0, "collection"), (1, "name")):
        seen: set[str] = set()
        for table in tables:
            name = str(table[names])
            if name.lower() in seen:
                raise ValueError(f"the query has the {what} {name} twice; each can be joined once")
            seen.add(name.lower())
    return tables


def _table(table: exp.Expression) -> tuple[str, str]:
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        _refuse(f"{_said(table)} in FROM")
    assert isinstance(table, exp.Table)
    if table.db or table.catalog:
        raise ValueError(
            f"write the collection's own name instead of {_said(table)}; a name with a dot stands "
            f"between backticks"
        )
    for clause, value in table.args.items():
        if value and clause not in {"this", "alias"}:
            _refuse(f"{_said(table)} in FROM")
    alias = table.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        _refuse(f"{_said(table)} in FROM")
    return table.name, table.alias or table.name


def _qualify(select: exp.Select, aliases: list[str]) -> None:
    """Give every column its collection."""
    known = {alias.lower(): alias for alias in aliases}
    for column in select.find_all(exp.Column):
        if column.args.get("db") or column.args.get("catalog"):
            raise ValueError(f"{_said(column)} has too many parts; write collection.column")
        if isinstance(column.this, exp.Star):
            _refuse(_said(column))
        if column.name.lower() == REJECTED:
            # It changes while the row does not, so nothing would follow it.
            _refuse(f"{_said(column)}, which says how old a row is")
        if not column.table:
            if len(aliases) > 1:
                raise ValueError(
                    f"{_said(column)} does not say its collection; write {aliases[0]}.{column.name}"
                )
            column.set("table", exp.to_identifier(aliases[0], quoted=True))
        elif column.table.lower() not in known:
            raise ValueError(
                f"{_said(column)} is of no collection of the query; it has {', '.join(aliases)} (a "
                f"field within a field is read by get_json_object(column, '$.field'))"
            )


def _groups(select: exp.Select) -> list[exp.Expression]:
    group = select.args.get("group")
    if group is None:
        return []
    for clause, value in group.args.items():
        if value and clause != "expressions":
            _refuse(f"GROUP BY {clause.upper().replace('_', ' ')}")
    groups: list[exp.Expression] = []
    for one in group.expressions:
        if type(one) is exp.Literal:
            raise ValueError(f"GROUP BY {_said(one)} is a place or nothing; write the expression")
        _check_scalar(one, "GROUP BY")
        if one not in groups:
            groups.append(one)
    return groups


def _shadowed(select: exp.Select, group: exp.Column) -> bool:
    return any(
        isinstance(one, exp.Alias) and one.alias.lower() == group.name.lower() and one.this != group
        for one in select.expressions
    )


def _refuse_shadowed(group: exp.Column) -> None:
    raise ValueError(
        f"GROUP BY {group.name} may be the column or the expression that the query calls so; give "
        f"that another name, and group by what is meant"
    )


class _Outputs:
    """Rewrites what is selected over groups and aggregates."""

    def __init__(self, groups: list[exp.Expression]) -> None:
        self._groups = groups
        self.arguments: list[str] = []
        self.aggregates: list[Aggregate] = []

    def expression(self, selected: exp.Expression) -> str:
        # A parent makes the topmost expression replaceable, too.
        whole = exp.Paren(this=selected.copy())
        self._rewrite(whole.this)
        return _sql(whole.this)

    def _rewrite(self, node: exp.Expression) -> None:
        if node in self._groups:
            node.replace(exp.column(f"_g{self._groups.index(node)}"))
        elif type(node) in AGGREGATES:
            node.replace(exp.column(f"_a{self._aggregate(node)}"))
        elif type(node) is exp.Column:
            raise ValueError(
                f"{_said(node)} is neither aggregated nor in GROUP BY; write it there, or min or "
                f"max of it"
            )
        else:
            _check_node(node, "SELECT")
            for child in list(node.iter_expressions()):
                self._rewrite(child)

    def _aggregate(self, node: exp.Expression) -> int:
        argument = node.this
        if isinstance(argument, exp.Distinct) or node.args.get("distinct"):
            _refuse(_said(node))
        if node.expressions or (argument is None and not isinstance(node, exp.Count)):
            _refuse(_said(node))
        place = None
        if not isinstance(argument, exp.Star):
            _check_scalar(node.this, _said(node))
            text = _sql(node.this)
            if text not in self.arguments:
                self.arguments.append(text)
            place = self.arguments.index(text)
        one = Aggregate(function=AGGREGATES[type(node)], argument=place)
        if one not in self.aggregates:
            self.aggregates.append(one)
        return self.aggregates.index(one)


def _needed(select: exp.Select) -> dict[str, dict[str, str]]:
    """By alias in lower case: the columns of it that the query reads, by name in lower case."""
    needed: dict[str, dict[str, str]] = {}
    own = {name.lower() for name in OWN_COLUMNS.names}
    for column in select.find_all(exp.Column):
        if column.name.lower() not in own:
            needed.setdefault(column.table.lower(), {})[column.name.lower()] = column.name
    return needed


def _check_scalar(node: exp.Expression, where: str) -> None:
    for one in node.walk():
        _check_node(one, where)


def _check_node(node: Any, where: str) -> None:
    if type(node) in AGGREGATES:
        raise ValueError(f"{_said(node)} is an aggregate, and cannot stand in {where}")
    if type(node) is exp.Literal and node.is_string and is_moment(node.this) and _is_dated(node):
        raise ValueError(
            f"{where}: a view cannot keep {of_moment(node.this)}. Write the moment itself, or "
            f"filter where you read the view"
        )
    if not _is_scalar(node) or (isinstance(node, exp.In) and not node.expressions):
        raise ValueError(f"{where}: a view cannot keep {_said(node)}. {_SCALARS_SAID}")


def _is_dated(text: exp.Literal) -> bool:
    """Whether it is plain that a date or timestamp is made of a text; else Spark says it."""
    by = text.parent
    if isinstance(by, exp.Cast):  # or TryCast
        return by.to.this in exp.DataType.TEMPORAL_TYPES
    if isinstance(by, exp.Anonymous):
        # The unit of date_trunc is no moment.
        return by.name in AS_WRITTEN and by.name != "GET_JSON_OBJECT"
    return isinstance(by, (exp.Hour, exp.Extract))


def _is_scalar(node: Any) -> bool:
    return type(node) in _SCALARS or (type(node) is exp.Anonymous and node.name in AS_WRITTEN)


def _refuse(what: str) -> None:
    raise ValueError(f"a view cannot keep {what}. {_SUPPORTED}")


def _said(node: exp.Expression) -> str:
    return node.sql(dialect=DIALECT)


def _sql(node: exp.Expression) -> str:
    return node.sql(dialect=DIALECT, comments=False)
