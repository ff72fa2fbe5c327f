"""A view's rows as they should be, and as they are: compared group by group. Pure."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Any

import pyarrow as pa

from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.comparing import Compared, Difference
from penstock.spark.view.sql import GROUP


def compare_groups(wanted: pa.Table, there: pa.Table, *, listed_max: int) -> Compared:
    """What of the rows `there` is not as `wanted`; a row is told by its GROUP.

    A column that one side lacks is null there, and one of another type differs in all rows.
    """
    first, repeated = _first(there)
    at = compute.index_in(wanted[GROUP], value_set=first[GROUP])
    missing = wanted.filter(compute.is_null(at))[GROUP]
    extra = first.filter(compute.invert(compute.is_in(first[GROUP], value_set=wanted[GROUP])))
    both = wanted.filter(compute.is_valid(at))
    other = first.take(compute.drop_null(at))
    columns = {
        name: _unequal(_column(both, name), _column(other, name))
        for name in sorted({*wanted.column_names, *there.column_names} - {GROUP})
    }
    unequal = {
        name: set(compute.indices_nonzero(mask).to_pylist()) for name, mask in columns.items()
    }
    differing = sorted(set().union(*unequal.values()))
    keys: list[Any] = both[GROUP].to_pylist() if differing else []
    listed: list[tuple[Any, str, tuple[str, ...]]] = [
        *((group, "missing", ()) for group in missing.to_pylist()),
        *((group, "extra", ()) for group in extra[GROUP].to_pylist()),
        *((group, "repeated", ()) for group in repeated),
        *(
            (keys[row], "different", tuple(name for name in unequal if row in unequal[name]))
            for row in differing
        ),
    ]
    listed.sort()
    return Compared(
        collection="",
        rows=wanted.num_rows,
        found=there.num_rows,
        ranges=1,
        ranges_differing=int(bool(listed)),
        differences=len(listed),
        listed=tuple(
            Difference(key=group, source="", database="", what=what, columns=names)
            for group, what, names in listed[:listed_max]
        ),
    )


def _first(rows: pa.Table) -> tuple[pa.Table, list[Any]]:
    """One row of each group, and the groups that have several."""
    numbered = rows.append_column("", arrow.array(range(rows.num_rows), pa.int64()))
    found = numbered.group_by(GROUP).aggregate([("", "min"), ("", "count")])
    several = found.filter(compute.greater(found["_count"], 1))[GROUP]
    return rows.take(found["_min"]), several.to_pylist()


def _column(rows: pa.Table, name: str) -> Any:
    return rows[name] if name in rows.column_names else arrow.nulls(rows.num_rows)


def _unequal(wanted: Any, there: Any) -> Any:
    """A mask of where two columns differ: null equals null, and NaN itself."""
    if wanted.type != there.type:
        if pa.null() not in {wanted.type, there.type}:
            return arrow.array([True] * len(wanted), pa.bool_())
        known = there if wanted.type == pa.null() else wanted
        return compute.is_valid(known)
    same = compute.equal(wanted, there)
    if pa.types.is_floating(wanted.type):
        both = compute.and_(compute.is_nan(wanted), compute.is_nan(there))
        same = compute.or_(same, both)
    neither = compute.and_(compute.is_null(wanted), compute.is_null(there))
    return compute.invert(compute.or_(compute.fill_null(same, False), neither))
