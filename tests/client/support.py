"""Services that are not well."""

# The stubs of gRPC leave types open.
# pyright: reportUnknownVariableType=false

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from penstock.progress import Progress


class _Breaking(grpc.GenericRpcHandler):
    """Tells of every stream where it starts, and breaks it then."""

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._begin)

    async def _begin(self, _request: bytes, context: Any) -> None:
        await context.send_initial_metadata((("penstock-progress", str(Progress(1, 0, 0))),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the log cannot be read")


@asynccontextmanager
async def breaking() -> AsyncGenerator[str]:
    """The address of a service whose streams all break once they have begun."""
    server = grpc.aio.server(handlers=(_Breaking(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
