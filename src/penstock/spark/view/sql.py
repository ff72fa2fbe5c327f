"""The statements that keep a view, in Spark's SQL. Pure.

Three steps. `rows` joins the collections to one row for each row that is aggregated: groups `_g0`,
arguments `_x0`. `partials` aggregates them to what can be kept: how many rows a group has, and of
each argument how many values, their exact sum, the least and the greatest. `finished` makes the
query's columns of that.

A change of rows is told as rows that came (`_sign` 1) and rows that are gone (-1). `deltas` and
`merged` add them to the partials that the view has. Two things do not add up: a sum of doubles,
whose rounding depends on order, and a least or greatest value that is gone. Such groups are
`_again` to be aggregated from all their rows.

A sum of doubles is taken in ascending order of the values, so that it depends on them alone.
"""

# The statements are made here: expressions were parsed, and names are quoted.
# ruff: noqa: S608

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.spark.view.query import Aggregate, Joined, ViewQuery, columns_of
from penstock.spark.view.quotients import divided, mean, narrowed

AGAIN: Final = "_again"
GROUP: Final = "_group"
"""The group's values as a JSON array of texts: what tells one row of a view from the others."""
ROWS: Final = "_rows"
FAILED: Final = "_failed"
"""Which columns of a row are null because they cannot be computed, and why; null where all can."""
_IS_NEW: Final = "_new"

IDENTITY: Final = ("_key", "_source", "_database")

_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_DOUBLES: Final = frozenset({"double", "float", "string", "void"})
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DIGITS_MAX: Final = 38
_SUM_MORE: Final = 10
"""Digits that a sum of decimals has more than they."""
_BIGINT: Final = "DECIMAL(20, 0)"
"""A sum of integers among decimals."""


class Types(Struct, frozen=True, kw_only=True):
    """What Spark says that groups and arguments are, as `simpleString`."""

    groups: tuple[str, ...]
    arguments: tuple[str, ...]


class Partial(Struct, frozen=True, kw_only=True):
    """One column that is kept for each group beside the query's own."""

    name: str
    argument: int
    part: str
    """count, sum, min or max."""
    type: str

    @property
    def adds_up(self) -> bool:
        """Whether rows that come and go change it by what they are."""
        return self.part == "count" or (self.part == "sum" and self.type != "DOUBLE")


def groups_of(types: Types) -> list[str]:
    """The columns of the groups."""
    return [f"_g{at}" for at in range(len(types.groups))]


def own_columns(query: ViewQuery, types: Types) -> list[str]:
    """The columns of partials."""
    return [GROUP, ROWS, *(one.name for one in partials_of(query, types))]


def exact_type(type_: str) -> str | None:
    """The decimal that sums of a type are kept in; None for those of doubles.

    Raises ValueError for what has no sum.
    """
    if type_ in _INTEGERS:
        return "DECIMAL(38, 0)"
    if found := _DECIMAL.fullmatch(type_):
        return f"DECIMAL(38, {found[2]})"
    if type_ in _DOUBLES:
        return None
    raise ValueError(type_)


def partials_of(query: ViewQuery, types: Types) -> tuple[Partial, ...]:
    """What is kept of the arguments. Raises ValueError for a sum of what has none."""
    found: dict[str, Partial] = {}
    for one in query.aggregates:
        if one.argument is None:
            continue
        at, type_ = one.argument, types.arguments[one.argument]
        parts = {"count": ("count",), "sum": ("count", "sum"), "avg": ("count", "sum")}
        for part in parts.get(one.function, (one.function,)):
            kept = "BIGINT" if part == "count" else _kept_type(query, one, part, type_)
            name = f"_{part}{at}"
            found[name] = Partial(name=name, argument=at, part=part, type=kept)
    return tuple(found.values())


def _kept_type(query: ViewQuery, one: Aggregate, part: str, type_: str) -> str:
    if part != "sum":
        return "STRING" if type_ == "void" else type_
    try:
        return exact_type(type_) or "DOUBLE"
    except ValueError:
        assert one.argument is not None
        argument = query.arguments[one.argument]
        raise ValueError(f"{one.function}({argument}): there is none of type {type_}") from None


# --- rows ---------------------------------------------------------------------------------------


def _joined(query: ViewQuery, names: Mapping[str, str]) -> str:
    """FROM and WHERE; `names` gives the relation that stands for each collection."""
    main, *others = query.tables
    lines = [f"FROM {names[main.collection]} AS {quoted(main.alias)}"]
    lines += [join_clause(table, names, table.join) for table in others]
    if query.where is not None:
        lines.append(f"WHERE {query.where}")
    return "\n".join(lines)


def join_clause(table: Joined, names: Mapping[str, str], join: str) -> str:
    """One join, of that kind."""
    return f"{join} JOIN {names[table.collection]} AS {quoted(table.alias)} ON {table.on}"


def main_where(query: ViewQuery) -> str:
    """WHERE, of the conditions that read the main collection alone."""
    condition = query.main_where
    return "" if condition is None else f"WHERE {condition}"


def rows(query: ViewQuery, names: Mapping[str, str]) -> str:
    """The rows that are aggregated, as they are."""
    columns = [f"{group} AS _g{at}" for at, group in enumerate(query.groups)]
    columns += [f"{argument} AS _x{at}" for at, argument in enumerate(query.arguments)]
    return f"SELECT {', '.join([*columns, '1 AS _one'])}\n{_joined(query, names)}"


def typed(types: Types, relation: str, *, sign: int | None = None) -> str:
    """`rows` with groups that equal values have in common: -0.0 is 0.0, and void is a text."""
    columns = [f"{_as_group(f'_g{at}', one)} AS _g{at}" for at, one in enumerate(types.groups)]
    columns += [f"{_as_value(f'_x{at}', one)} AS _x{at}" for at, one in enumerate(types.arguments)]
    columns.append("_one" if sign is None else f"{sign} AS _sign")
    return f"SELECT {', '.join(columns)} FROM ({relation})"


def _as_group(name: str, type_: str) -> str:
    if type_ in {"double", "float"}:
        return f"CAST({name} + 0D AS {type_})"
    return _as_value(name, type_)


def _as_value(name: str, type_: str) -> str:
    return f"CAST({name} AS STRING)" if type_ == "void" else name


def group_key(types: Types) -> str:
    """The expression of GROUP."""
    texts = [
        f"hex(_g{at})" if one == "binary" else f"CAST(_g{at} AS STRING)"
        for at, one in enumerate(types.groups)
    ]
    return f"to_json(array({', '.join(texts)}))" if texts else "'[]'"


# --- partials -----------------------------------------------------------------------------------


def partials(query: ViewQuery, types: Types, relation: str) -> str:
    """The partials of all groups among `typed` rows."""
    columns = [f"COUNT(_one) AS {ROWS}"]
    for one in partials_of(query, types):
        value = f"_x{one.argument}"
        if one.part == "count":
            columns.append(f"COUNT({value}) AS {one.name}")
        elif one.part != "sum":
            columns.append(f"{one.part}({value}) AS {one.name}")
        elif not one.adds_up:
            ascending = f"array_sort(collect_list(CAST({value} AS DOUBLE)))"
            columns.append(f"aggregate({ascending}, 0D, (total, one) -> total + one) AS {one.name}")
        else:
            columns.append(f"{_summed(f'CAST({value} AS {one.type})', one.type)} AS {one.name}")
    return _grouped(types, columns, relation)


def deltas(query: ViewQuery, types: Types, relation: str) -> str:
    """What signed rows add to the partials of the groups that they are of."""
    columns = [f"{_summed('_sign', 'BIGINT')} AS {ROWS}"]
    for one in partials_of(query, types):
        value = f"_x{one.argument}"
        if one.part == "count":
            counted = f"CASE WHEN {value} IS NULL THEN 0 ELSE _sign END"
            columns.append(f"{_summed(counted, 'BIGINT')} AS {one.name}")
        elif one.part != "sum":
            came = f"CASE WHEN _sign > 0 THEN {value} END"
            gone = f"CASE WHEN _sign < 0 THEN {value} END"
            columns.append(f"{one.part}({came}) AS {one.name}")
            columns.append(f"{one.part}({gone}) AS {one.name}_gone")
        elif one.adds_up:
            exact = f"CAST({value} AS {one.type})"
            signed = f"CASE WHEN _sign > 0 THEN {exact} ELSE -{exact} END"
            columns.append(f"{_summed(signed, one.type)} AS {one.name}")
    return _grouped(types, columns, relation)


def _summed(value: str, type_: str) -> str:
    return f"COALESCE(SUM({value}), CAST(0 AS {type_}))"


def _grouped(types: Types, columns: list[str], relation: str) -> str:
    groups = groups_of(types)
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    inner = f"SELECT {', '.join([*groups, *columns])} FROM ({relation}){by}"
    # The key is of the group's value: GROUP BY has made one of those that are equal.
    return f"SELECT {group_key(types)} AS {GROUP}, * FROM ({inner})"


def merged(query: ViewQuery, types: Types, *, delta: str, view: str) -> str:
    """The partials of the groups of `delta` after it; `_again` says which must be aggregated.

    Old and new partials are summed, not added: to add two decimals of 38 digits costs one of them.
    """
    kept = partials_of(query, types)
    new = [GROUP, *groups_of(types), f"1 AS {_IS_NEW}", ROWS]
    old = [GROUP, *(f"NULL AS {name}" for name in groups_of(types)), f"0 AS {_IS_NEW}", ROWS]
    columns = [GROUP, *(f"MAX({name}) AS {name}" for name in groups_of(types))]
    columns.append(f"SUM({ROWS}) AS {ROWS}")
    again = ["false"]
    for one in kept:
        name = one.name
        old.append(name)
        if one.part in {"min", "max"}:
            new += [name, f"{name}_gone"]
            old.append(f"NULL AS {name}_gone")
            pick, beyond = (one.part, "<=" if one.part == "min" else ">=")
            was = f"{pick}(CASE WHEN {_IS_NEW} = 0 THEN {name} END)"
            came = f"{pick}(CASE WHEN {_IS_NEW} = 1 THEN {name} END)"
            gone = f"{pick}({name}_gone)"
            columns.append(f"{pick}({name}) AS {name}")
            left, replaced = f"{gone} {beyond} {was}", f"{came} {beyond} {gone}"
            again.append(f"COALESCE({left}, false) AND NOT COALESCE({replaced}, false)")
        elif one.adds_up:
            new.append(name)
            columns.append(f"SUM({name}) AS {name}")
        else:
            new.append(f"CAST(NULL AS DOUBLE) AS {name}")
            columns.append(f"CAST(NULL AS DOUBLE) AS {name}")
            again.append("true")
    columns.append(f"{' OR '.join(f'({one})' for one in again)} AS {AGAIN}")
    return (
        f"SELECT {', '.join(columns)} FROM (SELECT {', '.join(new)} FROM {delta} UNION ALL "
        f"SELECT {', '.join(old)} FROM {view} WHERE {GROUP} IN (SELECT {GROUP} FROM {delta})) "
        f"GROUP BY {GROUP}"
    )


# --- columns ------------------------------------------------------------------------------------


def finished(
    query: ViewQuery,
    types: Types,
    relation: str,
    *,
    whole: str | None = None,
    failing: str | None = None,
) -> str:
    """The view's rows: the query's columns, then Penstock's own, from partials.

    With `whole`, from `merged`: where that does not hold there is nothing to say yet, and the
    query's columns are null. `failing` is a relation of groups (GROUP) that says which of the
    query's columns cannot be computed there (`names`), and in words why (FAILED): those are null.
    """
    own = own_columns(query, types) + ([] if whole is None else [AGAIN])
    integers, sums = _integers(query, types), _sums(query, types)
    outputs = [(name, narrowed(divided(one, integers), sums)) for name, one in query.outputs]
    aggregates = [f"_a{at}" for at in range(len(query.aggregates))]
    values = dict(zip(aggregates, (_value(one, types) for one in query.aggregates), strict=True))
    if failing is None:
        failed, source = f"CAST(NULL AS STRING) AS {FAILED}", f"({relation})"
        inner = [*own]
    else:
        failed, source = FAILED, f"({relation}) AS p LEFT JOIN {failing} AS f USING ({GROUP})"
        inner = [*own, FAILED, "names"]
        # Spark computes them before it looks which column needs them.
        values = {
            name: f"CASE WHEN {_some_fits(name, query)} THEN {value} END"
            for name, value in values.items()
        }
    inner += [f"{value} AS {name}" for name, value in values.items()]
    columns: list[str] = []
    for name, expression in outputs:
        conditions = [] if whole is None else [whole]
        conditions += [] if failing is None else [_fits(name)]
        guard = " AND ".join(conditions)
        column = f"CASE WHEN {guard} THEN {expression} END" if guard else expression
        columns.append(f"{column} AS {quoted(name)}")
    rows_ = f"SELECT {', '.join([*groups_of(types), *inner])} FROM {source}"
    return f"SELECT {', '.join([*columns, *own, failed])} FROM ({rows_})"


def _fits(name: str) -> str:
    """Whether a column can be computed in its group."""
    literal = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"(names IS NULL OR NOT array_contains(names, '{literal}'))"


def _some_fits(aggregate: str, query: ViewQuery) -> str:
    """Whether a column can be computed that needs this aggregate."""
    needing = [name for name, one in query.outputs if aggregate in columns_of(one)]
    return " OR ".join(map(_fits, needing)) or "true"


def _integers(query: ViewQuery, types: Types) -> set[str]:
    """The groups and aggregates that are integers in the query, however they are kept."""
    found = {f"_g{at}" for at, type_ in enumerate(types.groups) if type_ in _INTEGERS}
    for at, one in enumerate(query.aggregates):
        of_integers = one.argument is not None and types.arguments[one.argument] in _INTEGERS
        if one.function == "count" or (of_integers and one.function != "avg"):
            found.add(f"_a{at}")
    return found


def _sums(query: ViewQuery, types: Types) -> dict[str, str]:
    """What Spark's own sums are that are kept in wider types."""
    found: dict[str, str] = {}
    for at, one in enumerate(query.aggregates):
        if one.function == "sum" and one.argument is not None:
            type_ = _sum_type(types.arguments[one.argument])
            if type_ is not None:
                found[f"_a{at}"] = type_
    return found


def _sum_type(type_: str) -> str | None:
    """The decimal that Spark has of a sum of a type, should it be narrower than `exact_type`."""
    if type_ in _INTEGERS:
        return _BIGINT
    found = _DECIMAL.fullmatch(type_)
    if found is None or (digits := int(found[1]) + _SUM_MORE) >= _DIGITS_MAX:
        return None
    return f"DECIMAL({digits}, {found[2]})"


def _value(one: Aggregate, types: Types) -> str:
    """What the query's aggregate is, of partials."""
    at = one.argument
    if at is None:
        return ROWS
    if one.function not in {"sum", "avg"}:
        return f"_{one.function}{at}"
    whole, type_ = f"_sum{at}", types.arguments[at]
    if one.function == "avg":
        count = f"_count{at}"
        if found := _DECIMAL.fullmatch(type_):
            whole = mean(whole, count, precision=int(found[1]), scale=int(found[2]))
        else:
            whole = f"CAST({whole} AS DOUBLE) / CAST({count} AS DOUBLE)"
    return f"CASE WHEN _count{at} > 0 THEN {whole} END"


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"
