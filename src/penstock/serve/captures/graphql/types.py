"""The types of collections' changes, made of their shapes."""

import types as python
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import strawberry
from msgspec import Raw

from penstock.serve.captures.graphql import scalars
from penstock.serve.captures.graphql.items import (
    Change,
    DataChange,
    Told,
    UpdateDescription,
    heading,
    update_of,
)
from penstock.serve.captures.graphql.names import distinct, pascal
from penstock.serve.captures.graphql.scalars import Json
from penstock.serve.captures.graphql.shapes import Field, Fitter, Shape

_PYTHON: dict[str, Any] = {
    "Int": int,
    "Long": scalars.Long,
    "Float": float,
    "Decimal": scalars.Decimal,
    "String": str,
    "Boolean": bool,
    "DateTime": scalars.DateTime,
    "ObjectId": scalars.ObjectId,
    "Base64": scalars.Base64,
    "JSON": scalars.Json,
}
_FIELDS = msgspec.json.Decoder(dict[str, Raw])


class EntityTypes:
    """The types of one collection, and its changes as such."""

    def __init__(self, shape: Shape, name: str) -> None:
        """`name`: of its types, as in `on{name}DataChange`."""
        self.shape = shape
        self.name = name
        self._fitter = Fitter(shape)
        self._document = _document(shape, name)
        self._body = _body(name, self._document)
        self.change: type[Any] = _change(shape, name, self._body)

    def change_of(self, told: Told, ids: tuple[str, ...]) -> Change:
        """A change of data of this collection."""
        body = None
        if bytes(told.body):
            said = cast("dict[str, Any]", _FIELDS.decode(told.body))
            body = self._body(
                full_document=self._fitted(said.get("fullDocument")),
                full_document_before_change=self._fitted(said.get("fullDocumentBeforeChange")),
                update_description=update_of(said.get("updateDescription")),
                disambiguated_paths=said.get("disambiguatedPaths"),
                unchanged=said.get("unchanged"),
            )
        made: Change = self.change(
            **heading(told, ids), document_id=told.document_id, snapshot=told.snapshot, body=body
        )
        return made

    def _fitted(self, document: Raw | None) -> Any:
        if document is None or bytes(document) == b"null":
            return None
        fitted = self._fitter.fit(document)
        values = {
            f"f{number}": fitted.values.get(one.spelling)
            for number, one in enumerate(self.shape.fields)
        }
        return self._document(**values, rest=fitted.rest, misfits=fitted.misfits)


def entity_types(shapes: Sequence[Shape]) -> dict[str, EntityTypes]:
    """By collection, its types: names that would be spelt alike get a number behind."""
    by_name = {shape.entity_type: shape for shape in shapes}
    named = distinct((name, pascal(name)) for name in by_name)
    return {name: EntityTypes(by_name[name], spelt) for name, spelt in sorted(named.items())}


def _document(shape: Shape, name: str) -> type[Any]:
    attributes: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    for number, field in enumerate(shape.fields):
        attribute = f"f{number}"
        annotations[attribute] = _annotation(field.type)
        attributes[attribute] = strawberry.field(name=field.spelling, description=_described(field))
    annotations |= {"rest": Json, "misfits": list[str]}
    attributes |= {
        "rest": strawberry.field(
            description="Every field that is not announced here, and every value that does not fit "
            "what was announced, by the document's own names, as they are."
        ),
        "misfits": strawberry.field(
            description="Fields, by the document's own names, whose value does not fit what was "
            "announced: they are null here, and their values in rest."
        ),
    }
    where = "configured" if shape.configured else "inferred from documents"
    return _made(
        f"{name}Document",
        (),
        annotations,
        attributes,
        f"A document of {shape.entity_type}. Its fields were {where}. A field that is null is "
        f"absent or null in the document, or in misfits.",
    )


def _annotation(announced: str) -> Any:
    inside = _PYTHON[announced.strip("[]")] | None
    return (list[inside] | None) if announced.startswith("[") else inside  # type: ignore[valid-type]


def _described(field: Field) -> str | None:
    return None if field.name == field.spelling else f"In documents: {field.name}"


def _body(name: str, document: type[Any]) -> type[Any]:
    annotations = {
        "full_document": document | None,
        "full_document_before_change": document | None,
        "update_description": UpdateDescription | None,
        "disambiguated_paths": Json | None,
        "unchanged": Json | None,
    }
    return _made(f"{name}DataBody", (), annotations, {}, "What there is now, as far as it is told.")


def _change(shape: Shape, name: str, body: type[Any]) -> type[Any]:
    return _made(
        f"{name}DataChange",
        (DataChange,),
        {"body": body | None},
        {},
        f"A change of a document of {shape.entity_type}.",
    )


def _made(
    name: str,
    bases: tuple[type, ...],
    annotations: dict[str, Any],
    attributes: dict[str, Any],
    description: str,
) -> type[Any]:
    """A type of GraphQL of that name."""

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update({**attributes, "__annotations__": annotations, "__module__": __name__})

    made = python.new_class(name, bases, {}, fill)
    return strawberry.type(made, name=name, description=description)
