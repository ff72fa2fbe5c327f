"""What the arguments of a subscription ask for, as a request of the core."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import strawberry
from graphql import (
    FieldNode,
    FragmentSpreadNode,
    GraphQLResolveInfo,
    InlineFragmentNode,
    SelectionNode,
)
from strawberry.types import Info

from penstock.errors import RequestError
from penstock.serve.captures.graphql.scalars import Json, Long, NumberOrText


@strawberry.enum
class Content(Enum):
    """How much of a change is sent."""

    HEADER = "header"
    BODY = "body"


@strawberry.enum
class Area(Enum):
    """What a change is about."""

    SYSTEM = "system"
    CATALOG_SCHEMA = "catalog_schema"
    ENTITY_SCHEMA = "entity_schema"
    SCHEMA = "schema"
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"


@strawberry.enum
class ContainerType(Enum):
    """What part of a thing a change touches."""

    CATALOG = "catalog"
    ENTITY = "entity"
    ATTRIBUTE = "attribute"


@strawberry.input
class Since:
    """Where to begin; at most one of them, and none means now. To go on from what was read give
    `progress`: it alone proves that the log is still the same one."""

    progress: str | None = strawberry.field(default=None, description="Exclusive: a marker.")
    version: Long | None = strawberry.field(default=None, description="Inclusive, with index.")
    index: Long | None = strawberry.field(default=None, description="With version; 0 without.")
    transaction_id: NumberOrText | None = strawberry.field(
        default=None, description="Exclusive: a commit's number, or the source's own name."
    )
    timestamp: NumberOrText | None = strawberry.field(
        default=None, description="Inclusive: Unix milliseconds, or ISO 8601 with its zone."
    )
    beginning: bool | None = strawberry.field(
        default=None, description="The oldest change that is kept."
    )


@strawberry.input
class EntitySite:
    """Where in a collection a change must be: all that is said holds, a list is a choice."""

    catalog: list[str] | None = None
    entity_primary_key: list[Json] | None = None
    operation: list[str] | None = None
    fields: list[str] | None = strawberry.field(
        default=None, description="It touches one of these; an empty list: any at all."
    )


@strawberry.input
class Site:
    """Where a change must be: all that is said holds, a list is a choice."""

    catalog: list[str] | None = None
    entity_type: list[str] | None = None
    entity_primary_key: list[Json] | None = None
    operation: list[str] | None = None
    container_type: list[ContainerType] | None = None
    container_name: list[str] | None = None
    fields: list[str] | None = None


@strawberry.input
class Criterion:
    """One of the alternatives."""

    area: Area | None = None
    site: Site | None = None


_SITE = {
    "catalog": "catalog",
    "entity_type": "entityType",
    "entity_primary_key": "entityPrimaryKey",
    "operation": "operation",
    "container_name": "containerName",
    "fields": "fields",
}


def site_json(site: Site | EntitySite) -> dict[str, Any]:
    """A site as the core takes it."""
    said = {
        name: getattr(site, attribute)
        for attribute, name in _SITE.items()
        if getattr(site, attribute, None) is not None
    }
    if isinstance(site, Site) and site.container_type is not None:
        said["containerType"] = [one.value for one in site.container_type]
    return said


def criterion_json(criterion: Criterion) -> dict[str, Any]:
    """A criterion as the core takes it."""
    said: dict[str, Any] = {} if criterion.area is None else {"area": criterion.area.value}
    if criterion.site is not None:
        said["site"] = site_json(criterion.site)
    return said


def since_json(since: Since | None) -> Any:
    """A start as the core takes it. Raises RequestError for the beginning and another one."""
    if since is None:
        return None
    said = {
        "progress": since.progress,
        "version": since.version,
        "index": since.index,
        "transactionId": since.transaction_id,
        "timestamp": since.timestamp,
    }
    found = {name: one for name, one in said.items() if one is not None}
    if since.beginning:
        if found:
            raise RequestError(
                f"since says beginning and {next(iter(found))}: only one can be meant. Nothing "
                f"was sent."
            )
        return "beginning"
    return found or None


class Terms:
    """What every subscription takes beside where changes must be."""

    def __init__(
        self,
        info: Info[Any, Any],
        *,
        id: str | None,  # noqa: A002 - as clients say it
        since: Since | None,
        content: Content | None,
        before_images: bool | None,
        complete_after: int | None,
    ) -> None:
        selected = selected_names(info)
        if content is None:
            content = Content.BODY if "body" in selected else Content.HEADER
        if before_images is None:
            before_images = content is Content.BODY and "fullDocumentBeforeChange" in selected
        self._said = {
            "id": id,
            "since": since_json(since),
            "content": content.value,
            "beforeImages": before_images,
            "completeAfter": complete_after,
        }

    def asking(self, criteria: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The request, as the core takes it."""
        return {**self._said, "criteria": list(criteria)}


def selected_names(info: Info[Any, Any]) -> frozenset[str]:
    """The names of all fields that are selected somewhere below."""
    # Its `selected_fields` would expand fragments again and again.
    raw: GraphQLResolveInfo[Any] = getattr(info, "_raw_info")  # noqa: B009 - of no known type
    found: set[str] = set()
    seen: set[str] = set()
    left: list[SelectionNode] = [*raw.field_nodes]
    while left:
        node = left.pop()
        if isinstance(node, FragmentSpreadNode):
            name = node.name.value
            if name not in seen and name in raw.fragments:
                seen.add(name)
                left += raw.fragments[name].selection_set.selections
        elif isinstance(node, FieldNode | InlineFragmentNode):
            if isinstance(node, FieldNode):
                found.add(node.name.value)
            if node.selection_set is not None:
                left += node.selection_set.selections
    return frozenset(found)
