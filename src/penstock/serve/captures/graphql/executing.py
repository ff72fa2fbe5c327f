"""Runs an operation: within limits, with the errors that a client may see."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

import structlog
from graphql import (
    DocumentNode,
    GraphQLError,
    OperationDefinitionNode,
    OperationType,
    get_operation_ast,
)
from msgspec import structs
from strawberry.types.execution import ExecutionResult, PreExecutionError

from penstock.errors import PenstockError, RequestError
from penstock.serve.captures.config import GraphqlConfig
from penstock.serve.captures.graphql.following import PROTOCOL, Client
from penstock.serve.captures.graphql.limits import (
    OperationLimits,
    describes,
    fragments_of,
    parsed,
    require_few,
)
from penstock.serve.captures.graphql.messages import Operation
from penstock.serve.captures.graphql.schema import INTERNAL, CaptureSchema, error_json
from penstock.telemetry import PUBLISH_ERRORS

log = structlog.get_logger(__name__)

Answer = dict[str, Any]


class RefusedError(Exception):
    """An operation is over, by these errors; nothing of it comes behind them."""

    def __init__(self, errors: list[Answer]) -> None:
        super().__init__(errors)
        self.errors = errors


async def execute(
    schema: CaptureSchema,
    operation: Operation,
    client: Client,
    config: GraphqlConfig,
    *,
    may_subscribe: bool,
) -> AsyncGenerator[Answer]:
    """The results of an operation: of a query one, of a subscription one at a time, each made when
    it is asked for. Raises RefusedError for what ends it."""
    try:
        require_few(operation.variables)
        document = parsed(operation.query, limits_of(config))
        asked = _asked(document, operation)
        subscribes = asked.operation is OperationType.SUBSCRIPTION
        describing = not subscribes and describes(asked, fragments_of(document))
        if subscribes and not may_subscribe:
            raise RequestError(
                "subscriptions are served over WebSocket (graphql-transport-ws) at this address. "
                "Nothing was sent."
            )
    except PenstockError as error:
        raise _refused([GraphQLError(str(error), original_error=error)]) from None
    async with AsyncExitStack() as stack:
        if not subscribes:
            await stack.enter_async_context(client.asking)
        client = structs.replace(client, document=document)
        if describing:
            yield await _described(schema, operation, client)
            return
        answers = _answers(schema, operation, client, subscribes=subscribes)
        async for answer in await stack.enter_async_context(aclosing(answers)):
            yield answer


async def _answers(
    schema: CaptureSchema, operation: Operation, client: Client, *, subscribes: bool
) -> AsyncGenerator[Answer]:
    results = await schema.stream(
        operation.query,
        variable_values=operation.variables,
        context_value=client,
        operation_name=operation.operation_name,
    )
    try:
        async with aclosing(results):
            async for result in results:
                if not isinstance(result, ExecutionResult):
                    raise _refused(getattr(result, "errors", None) or [])
                if result.errors and (subscribes or isinstance(result, PreExecutionError)):
                    raise _refused(result.errors)
                answer: Answer = {"data": result.data}
                if result.errors:
                    answer["errors"] = [error_json(one) for one in result.errors]
                yield answer
    except RefusedError:
        raise
    except Exception as error:
        # The other operations of its socket go on.
        log.error("graphql operation failed", error=type(error).__name__)  # noqa: TRY400
        raise RefusedError([INTERNAL]) from None


async def _described(schema: CaptureSchema, operation: Operation, client: Client) -> Answer:
    """What there is to ask for: made beside the loop, since of many types it takes long."""
    answering = partial(
        schema.execute_sync,
        operation.query,
        variable_values=operation.variables,
        context_value=client,
        operation_name=operation.operation_name,
    )
    result = await asyncio.get_running_loop().run_in_executor(schema.beside, answering)
    if result.errors:
        raise _refused(result.errors)
    return {"data": result.data}


def limits_of(config: GraphqlConfig) -> OperationLimits:
    """The configured limits."""
    return OperationLimits(
        tokens_max=config.tokens_max,
        depth_max=config.depth_max,
        aliases_max=config.aliases_max,
        fields_max=config.fields_max,
    )


def _asked(document: DocumentNode, operation: Operation) -> OperationDefinitionNode:
    found = get_operation_ast(document, operation.operation_name)
    if found is None:
        raise RequestError(
            "the query has not one operation, or none of that name. Nothing was sent. Say its "
            "operationName."
        )
    return found


def _refused(errors: list[GraphQLError]) -> RefusedError:
    said = [error_json(one) for one in errors] or [INTERNAL]
    for one in said:
        PUBLISH_ERRORS.labels(PROTOCOL, one["extensions"]["code"]).inc()
    return RefusedError(said)
