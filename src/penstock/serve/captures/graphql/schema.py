"""The schema, made of the shapes that there are, and what is answered by it."""

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from typing import Any, Final, cast

import strawberry
import structlog
from graphql import GraphQLError, GraphQLSchema, validate
from strawberry.extensions import SchemaExtension
from strawberry.schema.config import StrawberryConfig
from strawberry.tools import create_type
from strawberry.types.execution import ExecutionContext

from penstock.errors import PenstockError
from penstock.serve.captures.graphql.asking import Criterion
from penstock.serve.captures.graphql.following import Client, Teller, subscriptions
from penstock.serve.captures.graphql.items import (
    Confirmation,
    Maintenance,
    SchemaChange,
    SystemChange,
    Transaction,
    UntypedChange,
    UntypedSchemaChange,
    UntypedSystemChange,
)
from penstock.serve.captures.graphql.queries import Facts, query_type
from penstock.serve.captures.graphql.scalars import SCALARS
from penstock.serve.captures.graphql.shapes import Shape
from penstock.serve.captures.graphql.types import entity_types
from penstock.serve.captures.said import error_said
from penstock.subscribe.scope import Scope

log = structlog.get_logger(__name__)

_SCHEMAS_MAX: Final = 16
_MISTAKES_MAX: Final = 5
INTERNAL: Final = {
    "message": "this operation failed by a defect of the service, which goes on. What you saved is "
    "safe: ask again with it, and tell whoever runs this service.",
    "extensions": {"code": "internal"},
}
_STATIC: Final = (
    *(Confirmation, Maintenance, Transaction, SchemaChange, SystemChange),
    *(UntypedChange, UntypedSchemaChange, UntypedSystemChange),
)


class Prepared(SchemaExtension):
    """Executes what was parsed within limits, and validates it without what takes long: to find
    names that are like a long wrong one, and to list every mistake."""

    def on_parse(self) -> Generator[None]:
        """Before strawberry would parse it again."""
        client = cast("Client", self.execution_context.context)
        self.execution_context.graphql_document = client.document
        yield

    def on_validate(self) -> Generator[None]:
        """Before strawberry would validate it."""
        schema: GraphQLSchema = getattr(self.execution_context.schema, "_schema")  # noqa: B009
        document = self.execution_context.graphql_document
        assert document is not None
        self.execution_context.pre_execution_errors = validate(
            schema, document, max_errors=_MISTAKES_MAX, hide_suggestions=True
        )
        yield


class CaptureSchema(strawberry.Schema):
    """Keeps errors out of the logs: they are told to who asked, and may hold what they asked."""

    beside: Executor
    """Where what takes long is made, one at a time, while the others are served."""

    def process_errors(
        self, errors: list[GraphQLError], execution_context: ExecutionContext | None = None
    ) -> None:
        del execution_context
        for error in errors:
            cause = error.original_error
            if cause is not None and not isinstance(cause, PenstockError | GraphQLError):
                log.error("graphql operation failed", error=type(cause).__name__)


def schema_of(facts: Facts, shapes: Sequence[Shape]) -> CaptureSchema:
    """The schema of these shapes."""
    types = entity_types(shapes)
    teller = Teller(facts.service, types)
    made = CaptureSchema(
        query=query_type(facts, teller, types),
        subscription=create_type("Subscription", subscriptions(teller, types)),
        types=[*_STATIC, Criterion, *(one.change for one in types.values())],
        config=StrawberryConfig(scalar_map=SCALARS),
        extensions=[Prepared],
    )
    made.beside = facts.beside
    return made


class Schemas:
    """The schema for each scope: whoever may not see a collection is not told its fields either."""

    def __init__(self, facts: Facts, shapes: Sequence[Shape]) -> None:
        self._facts = facts
        self._shapes = tuple(shapes)
        self._made: OrderedDict[tuple[Shape, ...], asyncio.Task[CaptureSchema]] = OrderedDict()

    async def of(self, scope: Scope) -> CaptureSchema:
        """That of what `scope` allows; of many scopes, those of the last are kept."""
        shapes = tuple(seen for one in self._shapes if (seen := one.seen_by(scope)) is not None)
        making = self._made.get(shapes)
        if making is None:
            # Seconds, for many collections with many fields.
            making = asyncio.create_task(self._make(shapes))
            self._made[shapes] = making
            while len(self._made) > _SCHEMAS_MAX:
                self._made.popitem(last=False)
        self._made.move_to_end(shapes)
        try:
            return await asyncio.shield(making)
        except BaseException:
            if making.done() and self._made.get(shapes) is making:
                del self._made[shapes]  # It failed: whoever comes next tries again.
            raise

    async def _make(self, shapes: tuple[Shape, ...]) -> CaptureSchema:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._facts.beside, schema_of, self._facts, shapes)


def error_json(error: GraphQLError) -> dict[str, Any]:
    """An error as it is sent: of ours its code, and with it the oldest marker, or that after a gap;
    of a defect, that there was one."""
    cause = error.original_error
    if isinstance(cause, PenstockError):
        said = error_said(cause)
        return {"message": said.pop("message"), "extensions": said}
    if cause is not None and not isinstance(cause, GraphQLError):
        return INTERNAL
    formatted: dict[str, Any] = {**error.formatted}
    return {**formatted, "extensions": {"code": "request"}}
