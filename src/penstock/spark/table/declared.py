"""Columns whose kind the source declares, where their values differ in shape. Pure.

Of most columns each value tells the kind. A JSON column has values of every kind, and what its
first one happens to be says nothing of the others; so it is made as its source declares it, as soon
as that is known, with a value or without.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import structs

from penstock.event import Kind as Event
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import Control
from penstock.spark.table.kinds import Kind, column_field, document_field, kind_of_column
from penstock.spark.table.plan import Naming
from penstock.spark.transform.config import ExpectConfig, TransformConfig
from penstock.subscribe.current import Declared as Told

Declared = Mapping[str, Kind]
"""By field: the kind that its column has from the first."""

_KINDS: Final = {"json": Kind.JSON, "timestamp": Kind.TIMESTAMP}
"""By the type that events say in `varying`."""
_JSON: Final = frozenset({"json", "jsonb"})
"""In the words of Zero's sources."""


def kinds_of(varying: Mapping[str, str]) -> dict[str, Kind]:
    """The kinds of columns of these types; a type that is not known here declares nothing."""
    return {field: _KINDS[said] for field, said in varying.items() if said in _KINDS}


def _said_by(description: Mapping[str, Any]) -> dict[str, Kind]:
    """What an event declares: by `varying`, or, where it has none, by all `columns` it tells.

    Sources that know of `varying` say it wherever one of the columns is of such a type. Others list
    columns by name and type, or map them to types, as Zero's, of which only JSON differs in shape.
    """
    varying = description.get("varying")
    if isinstance(varying, Mapping):
        return kinds_of(varying)
    match description.get("columns"):
        case Mapping() as columns:
            types = {name: str(said).lower() for name, said in columns.items()}
            return kinds_of({name: "json" for name, said in types.items() if said in _JSON})
        case list() as columns:
            listed = [one for one in columns if isinstance(one, Mapping)]
            return kinds_of(
                {
                    str(one["name"]): str(one["type"]).partition("(")[0]
                    for one in listed
                    if "name" in one and "type" in one
                }
            )
        case _:
            return {}


class Declarations:
    """What events before a batch declare, that it does not say again. Of each collection the last
    one counts, as it says all of its fields."""

    def __init__(self, told: Iterable[Told] = ()) -> None:
        self._controls = {
            (one.database, one.collection): Control(
                sequence=one.sequence,
                kind=Event.SCHEMA,
                operation="modify",
                source="",
                database=one.database,
                collection=one.collection,
                timestamp=0,
                description={"varying": one.varying},
            )
            for one in told
        }

    def note(self, controls: Iterable[Control]) -> None:
        """A batch with these is applied."""
        for control in controls:
            own, said = (control.database, control.collection), control.description
            if control.kind is Event.GAP:
                self._forget(control, any_database=not control.database)
            elif control.operation == "dropDatabase":
                self._forget(control, any_database=False)
            elif control.operation == "rename":
                to = said.get("to") or {}
                self._move(own, (str(to.get("db", "")), str(to.get("coll", ""))))
            elif control.operation == "drop" and not said.get("truncated"):
                self._controls.pop(own, None)
            elif "varying" in said or "columns" in said:
                self._controls[own] = control

    def _forget(self, control: Control, *, any_database: bool) -> None:
        """What was declared of the event's collection; of all where it is about none."""
        self._controls = {
            (database, collection): one
            for (database, collection), one in self._controls.items()
            if (control.collection and collection != control.collection)
            or not (any_database or database == control.database)
        }

    def _move(self, own: tuple[str, str], to: tuple[str, str]) -> None:
        self._controls.pop(to, None)
        moved = self._controls.pop(own, None)
        if moved is not None:
            self._controls[to] = structs.replace(moved, database=to[0], collection=to[1])

    def before(self, controls: Sequence[Control]) -> list[Control]:
        """Them, without those that a batch's own events put an end to, and then these."""
        left = Declarations()
        left._controls = dict(self._controls)
        left.note(controls)
        own = set(map(id, controls))
        return [*(one for one in left._controls.values() if id(one) not in own), *controls]


def declared_by(
    controls: Iterable[Control],
    collection: str,
    steps: Sequence[TransformConfig | ExpectConfig] = (),
) -> dict[str, Kind]:
    """What these events declare of a collection's fields behind its steps.

    Where they say two things of one, for tables of several databases or one that was altered, it is
    JSON, which holds all.
    """
    found: dict[str, Kind] = {}
    for control in controls:
        if control.collection == collection:
            for field, kind in behind(steps, _said_by(control.description)).items():
                found[field] = kind if found.get(field, kind) is kind else Kind.JSON
    return found


def behind(
    steps: Sequence[TransformConfig | ExpectConfig], declared: Mapping[str, Kind]
) -> dict[str, Kind]:
    """What is declared of the fields that steps leave as they are, by their new names."""
    left = dict(declared)
    for step in steps:
        if not isinstance(step, TransformConfig) or step.kind == "filter":
            continue
        match step.kind:
            case "select":
                left = {field: kind for field, kind in left.items() if field in step.select}
            case "rename":
                left = {step.rename.get(field, field): kind for field, kind in left.items()}
            case "sql" | "function":
                return {}
            case _:
                flattened = (
                    step.flatten
                    if isinstance(step.flatten, tuple)
                    else tuple(field for field, kind in left.items() if kind is Kind.JSON)
                )
                changed = {
                    "drop": step.drop,
                    "cast": tuple(step.cast),
                    "mask": step.mask,
                    "hash": step.hash,
                    "flatten": flattened,
                    "explode": (step.explode,),
                }[step.kind]
                left = {field: kind for field, kind in left.items() if field not in changed}
    return left


def with_declared(existing: pa.Schema, declared: Declared, naming: Naming) -> pa.Schema:
    """The columns of a table and those of declared fields that it does not have, where it has room.

    A column that is there keeps its kind.
    """
    columns: list[Any] = list(existing)
    known = {document_field(column) for column in columns}
    taken = {naming.one_case(name) for name in (*naming.own, *existing.names)}
    width = naming.room.width(*map(kind_of_column, columns))
    for field, kind in declared.items():
        name, more = field.translate(naming.forbidden), naming.room.width(kind)
        if field in known or naming.refusal(name, field, taken) is not None:
            continue
        if not naming.room.holds(len(naming.own) + len(columns) + 1, width + more):
            continue
        taken.add(naming.one_case(name))
        width += more
        columns.append(column_field(name, kind, field=field))
    schema: pa.Schema = arrow.schema(columns)
    return schema
