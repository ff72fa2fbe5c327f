"""Whatever struct is decoded anywhere takes each value that the types of its fields allow.

A field typed `Raw | None` would take nothing but null, and a record with another value would stop
whoever reads it. The structs are found in the sources, so that a new one is tried too.
"""

import ast
import importlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct, inspect

from penstock.store.schema import Retention
from tests.seeds import cases

SOURCES = Path(__file__).parents[2] / "src"
Codec = tuple[Callable[[Any], bytes], Callable[..., Any]]
CODECS: dict[str, Codec] = {
    "json": (msgspec.json.encode, msgspec.json.decode),
    "msgpack": (msgspec.msgpack.encode, msgspec.msgpack.decode),
}
RAW = {"json": Raw(b'{"$numberLong":"1"}'), "msgpack": Raw(b"\x81\xa1a\x01")}

CHECKED: dict[Any, st.SearchStrategy[Any]] = {
    Retention: st.builds(Retention, age_seconds=st.integers(1, 9), records_max=st.integers(1, 9))
    | st.builds(Retention.by_hand, bytes_max=st.integers(1, 9)),
}
"""Structs that refuse values which their types allow."""


def found() -> Iterator[tuple[str, str, str]]:
    """Module, format and name of each type that is decoded."""
    for path in sorted((SOURCES / "penstock").rglob("*.py")):
        if "_generated" in path.parts:
            continue
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            asked = [one.value for one in node.keywords if one.arg == "type"]
            if node.func.attr == "Decoder":
                asked += node.args[:1]
            elif node.func.attr != "decode":
                continue
            form = getattr(node.func.value, "attr", getattr(node.func.value, "id", ""))
            for name in (one for whole in asked for one in ast.walk(whole)):
                if isinstance(name, ast.Name) and name.id.strip("_")[:1].isupper():
                    yield module, form, name.id


def structs() -> list[Any]:
    """The types that are structs, or are one of several."""
    params: list[Any] = []
    for module, form, name in sorted(set(found())):
        kind = getattr(importlib.import_module(module), name, None)
        if form in CODECS and kind not in {None, Any, Raw, Decimal}:
            params.append(pytest.param(kind, form, id=f"{module}.{name}"))
    return params


def values(kind: inspect.Type, form: str) -> st.SearchStrategy[Any]:
    """All that a type allows, but numbers that JSON has no form for, and not much of each."""
    match kind:
        case inspect.IntType():
            least, most = _bound(kind.ge, kind.gt, -(1 << 63)), _bound(kind.le, kind.lt, 1 << 62)
            return st.integers(least, most)
        case inspect.FloatType():
            return st.floats(0, 1e300, allow_nan=False)
        case inspect.StrType():
            return st.text(min_size=kind.min_length or 0, max_size=max(5, kind.min_length or 0))
        case inspect.BytesType():
            return st.binary(max_size=5)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3)
        case inspect.RawType():
            return st.just(RAW[form])
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type, form), max_size=2).map(tuple)
        case inspect.TupleType():
            return st.tuples(*(values(one, form) for one in kind.item_types))
        case inspect.NamedTupleType():
            parts = st.tuples(*(values(one.type, form) for one in kind.fields))
            return parts.map(lambda given: kind.cls(*given))
        case inspect.ListType():
            return st.lists(values(kind.item_type, form), max_size=2)
        case inspect.SetType() | inspect.FrozenSetType():
            made: type = frozenset if isinstance(kind, inspect.FrozenSetType) else set
            return st.lists(values(kind.item_type, form), max_size=2).map(made)
        case inspect.DictType():
            return st.dictionaries(
                values(kind.key_type, form), values(kind.value_type, form), max_size=2
            )
        case inspect.UnionType():
            return st.one_of(*(values(one, form) for one in kind.types))
        case inspect.StructType() if kind.cls in CHECKED:
            return CHECKED[kind.cls]
        case inspect.StructType():
            fields = {one.name: values(one.type, form) for one in kind.fields}
            return st.fixed_dictionaries(fields).map(lambda given: kind.cls(**given))
        case _:
            raise NotImplementedError(f"{kind}: say here which values it allows")


def _bound(one: float | None, other: float | None, default: int) -> int:
    return int(next((bound for bound in (one, other) if bound is not None), default))


@pytest.mark.parametrize(("kind", "form"), structs())
def test_a_struct_is_decoded_with_each_value_that_its_fields_allow(kind: Any, form: str) -> None:
    encode, decode = CODECS[form]

    @given(values(inspect.type_info(kind), form))
    @settings(max_examples=cases(40), deadline=None)
    def read_back(value: Struct) -> None:
        written = encode(value)
        assert encode(decode(written, type=kind)) == written

    read_back()
