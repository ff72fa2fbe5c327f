"""How much an operation may ask for, and of what kind it is, told before it is validated. Pure.

Fragments are counted where they are spread, each looked at once: what is written in a few words can
be doubled with every fragment, and whoever walks all of it is busy for ever.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLSyntaxError,
    Node,
    OperationDefinitionNode,
    SelectionSetNode,
    parse,
)
from msgspec import Struct

from penstock.errors import RequestError
from penstock.subscribe.captures.requests import VALUES_MAX

_LIST_MAX: Final = VALUES_MAX
"""Of a list in variables: more than this, no request takes."""
_VALUES_MAX: Final = 20 * VALUES_MAX
"""Of variables, however they are nested. Each is looked at before the request can refuse it, and
nobody else has their turn meanwhile."""
_DESCRIBING: Final = frozenset({"__schema", "__type", "types"})
_NODES_DEEP_MAX: Final = 100
"""Of all that is written, arguments included: what walks it must not run out of stack."""


class OperationLimits(Struct, frozen=True, kw_only=True):
    """Of one document."""

    tokens_max: int
    depth_max: int
    aliases_max: int
    fields_max: int
    """Fields selected, with those of fragments as often as they are spread."""


class Cost(Struct, frozen=True):
    """Of a selection, with its fragments."""

    depth: int = 0
    aliases: int = 0
    fields: int = 0


def parsed(query: str, limits: OperationLimits) -> DocumentNode:
    """The document, if it asks for no more than it may. Raises RequestError otherwise, and for what
    is no GraphQL; nothing of the document is in the message."""
    try:
        document = parse(query, no_location=True, max_tokens=limits.tokens_max)
    except GraphQLSyntaxError as error:
        place = error.locations[0] if error.locations else None
        where = f" at line {place.line}, column {place.column}" if place else ""
        raise RequestError(
            f"the query is no GraphQL{where}, or nested too deep, or of more than "
            f"{limits.tokens_max} tokens. Nothing was sent."
        ) from None
    except RecursionError:
        raise _deep(limits) from None
    if not _is_shallow(document):
        raise _deep(limits)
    fragments = fragments_of(document)
    known: dict[str, Cost] = {}
    for one in document.definitions:
        if isinstance(one, OperationDefinitionNode):
            _require(_cost(one.selection_set, fragments, known, frozenset()), limits)
    return document


def require_few(variables: Mapping[str, Any] | None) -> None:
    """Raises RequestError for variables that hold more than any request takes."""
    left: list[Any] = [variables or {}]
    count = 0
    while left:
        value = left.pop()
        if isinstance(value, list):
            inside = cast("list[Any]", value)  # type: ignore[redundant-cast]
            if len(inside) > _LIST_MAX:
                raise _many(f"a list of more than {_LIST_MAX}")
        elif isinstance(value, dict):
            inside = list(cast("dict[str, Any]", value).values())
        else:
            continue
        count += len(inside)
        if count > _VALUES_MAX:
            raise _many(f"more than {_VALUES_MAX}")
        left += inside


def _many(found: str) -> RequestError:
    return RequestError(
        f"the variables have {found} values. Nothing was sent. Name fewer, or ask in several "
        f"operations."
    )


def describes(
    operation: OperationDefinitionNode, fragments: Mapping[str, FragmentDefinitionNode]
) -> bool:
    """Whether an operation asks for what there is to ask for, and for nothing else: that takes no
    log, and may be long. Raises RequestError for one that asks for both."""
    asked: set[str] = set()
    seen: set[str] = set()
    left: list[Any] = [*operation.selection_set.selections]
    while left:
        node = left.pop()
        if isinstance(node, FieldNode):
            asked.add(node.name.value)
        elif isinstance(node, FragmentSpreadNode):
            name = node.name.value
            if name not in seen and name in fragments:
                seen.add(name)
                left += fragments[name].selection_set.selections
        else:
            left += node.selection_set.selections
    if not asked & _DESCRIBING:
        return False
    if asked - _DESCRIBING - {"__typename"}:
        raise RequestError(
            "what there is to ask for (__schema, __type, types) is asked for by itself. Nothing "
            "was sent. Ask for the rest in another operation."
        )
    return True


def fragments_of(document: DocumentNode) -> dict[str, FragmentDefinitionNode]:
    """By name."""
    return {
        one.name.value: one
        for one in document.definitions
        if isinstance(one, FragmentDefinitionNode)
    }


def _require(cost: Cost, limits: OperationLimits) -> None:
    if cost.depth > limits.depth_max:
        raise _deep(limits)
    for name, found, most in (
        ("aliases", cost.aliases, limits.aliases_max),
        ("fields", cost.fields, limits.fields_max),
    ):
        if found > most:
            raise RequestError(
                f"the query selects more than {most} {name}. Nothing was sent. Ask for less, or in "
                f"several operations."
            )


def _deep(limits: OperationLimits) -> RequestError:
    return RequestError(
        f"the query is deeper than {limits.depth_max} levels. Nothing was sent. Ask for less."
    )


def _cost(
    selected: SelectionSetNode | None,
    fragments: dict[str, FragmentDefinitionNode],
    known: dict[str, Cost],
    within: frozenset[str],
) -> Cost:
    depth = aliases = fields = 0
    for node in selected.selections if selected is not None else ():
        if isinstance(node, FragmentSpreadNode):
            inside = _spread(node.name.value, fragments, known, within)
        else:
            inside = _cost(getattr(node, "selection_set", None), fragments, known, within)
        here = isinstance(node, FieldNode)
        depth = max(depth, inside.depth + here)
        fields += inside.fields + here
        aliases += inside.aliases + (isinstance(node, FieldNode) and node.alias is not None)
    return Cost(depth, aliases, fields)


def _spread(
    name: str,
    fragments: dict[str, FragmentDefinitionNode],
    known: dict[str, Cost],
    within: frozenset[str],
) -> Cost:
    if name in known:
        return known[name]
    if name in within or name not in fragments:
        return Cost()  # validation refuses it
    if len(within) > _NODES_DEEP_MAX:
        raise RequestError("fragments are spread in fragments too often. Nothing was sent.")
    known[name] = cost = _cost(fragments[name].selection_set, fragments, known, within | {name})
    return cost


def _is_shallow(document: DocumentNode) -> bool:
    level: list[Any] = [document]
    for _ in range(_NODES_DEEP_MAX):
        level = [inside for node in level for inside in _inside(node)]
        if not level:
            return True
    return False


def _inside(node: Node) -> list[Node]:
    found: list[Node] = []
    for key in node.keys:
        value: Any = getattr(node, key, None)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, Node)]  # pyright: ignore[reportUnknownVariableType]
    return found
