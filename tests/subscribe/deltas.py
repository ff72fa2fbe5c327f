"""Updates as a database describes them, and a plain applier: the oracle of composition."""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

PARTS = ("truncatedArrays", "updatedFields", "removedFields")


def delta(
    updated: dict[str, Any] | None = None,
    removed: Sequence[str] = (),
    cuts: dict[str, int] | None = None,
) -> dict[str, Any]:
    return {
        "updatedFields": updated or {},
        "removedFields": list(removed),
        "truncatedArrays": [
            {"field": field, "newSize": size} for field, size in (cuts or {}).items()
        ],
    }


# --- the oracle: an applier of its own ----------------------------------------------------------


def place(document: Any, path: str) -> tuple[Any, Any]:
    *steps, last = path.split(".")
    for step in steps:
        document = document[int(step) if isinstance(document, list) else step]
    return document, int(last) if isinstance(document, list) else last


def cut(document: Any, path: str, size: int) -> None:
    container, step = place(document, path)
    assert len(container[step]) >= size
    del container[step][size:]


def put(document: Any, path: str, value: Any) -> None:
    container, step = place(document, path)
    if isinstance(container, list) and step == len(container):
        container.append(copy.deepcopy(value))
    else:
        container[step] = copy.deepcopy(value)


def drop(document: Any, path: str) -> None:
    container, step = place(document, path)
    assert isinstance(container, dict)
    container.pop(step, None)


def applied(document: Any, description: dict[str, Any], order: Sequence[str] = PARTS) -> Any:
    """`document` after the description, its parts in the given order."""
    document = copy.deepcopy(document)
    for part in order:
        if part == "truncatedArrays":
            for one in description[part]:
                cut(document, one["field"], one["newSize"])
        elif part == "updatedFields":
            for path, value in description[part].items():
                put(document, path, value)
        else:
            for path in description[part]:
                drop(document, path)
    return document


# --- what a database would say ------------------------------------------------------------------

scalars = st.sampled_from([1, 2.5, "text", None, True, {"$numberLong": "5"}, {"$oid": "0" * 24}])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3), st.lists(inner, max_size=4)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from("abcd"), values, min_size=1, max_size=4)


def containers(node: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every document and array inside, with its path; wrappers are values."""
    found = [(path, node)]
    items: Any = node.items() if isinstance(node, dict) else enumerate(node)
    for step, child in items:
        is_wrapper = isinstance(child, dict) and next(iter(child), "").startswith("$")
        if isinstance(child, dict | list) and not is_wrapper:
            found += containers(child, f"{path}.{step}" if path else str(step))
    return found


def crossing(one: str, two: str) -> bool:
    return f"{one}.".startswith(f"{two}.") or f"{two}.".startswith(f"{one}.")


@st.composite
def updates(draw: st.DrawFn, document: Any) -> tuple[dict[str, Any], Any]:
    """An update of `document` as MongoDB describes it, and the document after it."""
    description = delta()
    after = copy.deepcopy(document)
    paths: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        path, node = draw(st.sampled_from(containers(after)))
        start = f"{path}." if path else ""
        if isinstance(node, dict):
            removes = bool(node) and draw(st.booleans())
            step = draw(st.sampled_from(sorted(node) if removes else list("abcd")))
            target = f"{start}{step}"
        elif node and draw(st.booleans()):
            removes, target = True, path
        else:
            removes, target = False, f"{start}{draw(st.integers(0, len(node)))}"
        # MongoDB never says two things of one place.
        if any(crossing(target, known) for known in paths):
            continue
        paths.append(target)
        if isinstance(node, list) and removes:
            size = draw(st.integers(0, len(node) - 1))
            description["truncatedArrays"].append({"field": path, "newSize": size})
            cut(after, path, size)
        elif removes:
            description["removedFields"].append(target)
            drop(after, target)
        else:
            value = draw(values)
            description["updatedFields"][target] = value
            put(after, target, value)
    return description, after
