"""The client's side of the wire: requests, channels, and errors as they were raised there."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from typing import Any, Final

import grpc
import grpc.aio

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client.change import Received
from penstock.client.credentials import NOBODY, Credentials
from penstock.errors import (
    AheadError,
    GapError,
    PenstockError,
    RenamedError,
    RequestError,
    ServiceUnavailableError,
    StreamChangedError,
    TrimmedError,
)
from penstock.proxies import is_here, of_grpc
from penstock.subscribe.shards import Shards
from penstock.wire import split_batch

METHOD: Final = "/penstock.v1.PullerService/SubscribeBatch"
_OPTIONS: Final = (
    # A document of 16 MB with its image before is one message; the default of 4 MiB would turn it
    # into an error that comes back for ever.
    ("grpc.max_receive_message_length", -1),
    # A server that vanished without a word is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

_BY_STATUS: Final[dict[grpc.StatusCode, type[PenstockError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RequestError,
    grpc.StatusCode.OUT_OF_RANGE: TrimmedError,
    grpc.StatusCode.FAILED_PRECONDITION: StreamChangedError,
    grpc.StatusCode.ABORTED: AheadError,
    grpc.StatusCode.DATA_LOSS: GapError,
    grpc.StatusCode.UNIMPLEMENTED: RequestError,
    grpc.StatusCode.UNAUTHENTICATED: RequestError,
    grpc.StatusCode.PERMISSION_DENIED: RequestError,
}


def request_bytes(
    *,
    consumer_id: str,
    collections: Iterable[str],
    control_events: bool,
    coalesce_on_catch_up: bool = False,
    shards: Shards | None = None,
) -> Callable[[str], bytes]:
    """What asks for the stream after a marker."""
    wanted = list(collections)

    def request(after: str) -> bytes:
        return pb.SubscribeRequest(
            consumer_id=consumer_id,
            after=after,
            collections=wanted,
            control_events=control_events,
            coalesce_on_catch_up=coalesce_on_catch_up,
            shard_by=shards.by if shards else (),
            shard_count=shards.count if shards else 0,
            shard_ids=sorted(shards.ids) if shards else (),
        ).SerializeToString()

    return request


def error_of(
    status: grpc.StatusCode, sentence: str, trailers: Mapping[str, str], *, target: str = ""
) -> PenstockError:
    """The error that the server at `target` raised, of its class, with its sentence and markers.

    A status that no Penstock server chose (a proxy's, the network's) is ServiceUnavailableError,
    which is transient, unless it says that the request itself is refused.
    """
    kind = _by_code().get(trailers.get("penstock-code", "")) or _BY_STATUS.get(status)
    if kind is None or kind.transient:
        proxy = of_grpc(_host(target))
        through = f" through the proxy {proxy}, which the environment names" if proxy else ""
        return ServiceUnavailableError(
            f"the service does not answer{through} ({status.name}: {sentence}). What you processed "
            f"is safe. The client connects again by itself, unless it was told to give up."
        )
    # The sentence was made where the facts are; here it is only handed on.
    error = kind.__new__(kind, sentence)
    if isinstance(error, TrimmedError):
        error.oldest = trailers.get("penstock-oldest", "")
    if isinstance(error, GapError | RenamedError):
        error.after = trailers.get("penstock-after", "")
    return error


def _by_code() -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {}
    rest: list[type[PenstockError]] = [PenstockError]
    while rest:
        kind = rest.pop()
        found[kind.code] = kind
        rest.extend(kind.__subclasses__())
    return found


def _text(metadata: Any) -> dict[str, str]:
    """Metadata as text; gRPC's own binary entries are not ours."""
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def _started(metadata: Any) -> Received:
    """The marker that the stream starts after: what makes an empty one resumable (P15)."""
    return Received([], _text(metadata).get("penstock-progress", ""))


def _proof(credentials: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        credentials.ca, credentials.key or None, credentials.certificate or None
    )


def _host(target: str) -> str:
    return target.rpartition(":")[0]


def _options(target: str) -> list[tuple[str, int]]:
    """What is on this machine is reached without a proxy of the environment."""
    return [*_OPTIONS, ("grpc.enable_http_proxy", int(not is_here(_host(target))))]


def channel(target: str, credentials: Credentials) -> grpc.aio.Channel:
    """A channel to `target`, encrypted if the credentials say whom to trust."""
    options = _options(target)
    if credentials.ca:
        return grpc.aio.secure_channel(target, _proof(credentials), options=options)
    return grpc.aio.insecure_channel(target, options=options)


def _ended() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "the service ended the stream without a reason. What you processed is safe."
    )


async def receive(
    target: str, request: bytes, *, method: str = METHOD, credentials: Credentials = NOBODY
) -> AsyncGenerator[Received]:
    """One call, from its start to its error; never ends without one. Closing it cancels the call.

    The first item has no messages: it is the marker that the stream starts after.
    """
    headers = credentials.headers(target)
    async with channel(target, credentials) as opened:
        untyped: Any = opened  # without serializers a method takes and gives bytes
        call = untyped.unary_stream(method)(request, metadata=headers)
        try:
            yield _started(await call.initial_metadata())
            async for message in call:
                yield Received(*split_batch(message))
        except grpc.aio.AioRpcError as error:
            raise error_of(
                error.code(),
                error.details() or "",
                _text(error.trailing_metadata()),
                target=target,
            ) from error
        finally:
            call.cancel()
        raise _ended()


class SyncCall:
    """One call over a channel of its own, read by one thread and cancelled by any."""

    def __init__(
        self,
        target: str,
        request: bytes,
        *,
        method: str = METHOD,
        credentials: Credentials = NOBODY,
    ) -> None:
        headers, options = credentials.headers(target), _options(target)
        self._target = target
        self._channel = (
            grpc.secure_channel(target, _proof(credentials), options=options)
            if credentials.ca
            else grpc.insecure_channel(target, options=options)
        )
        untyped: Any = self._channel  # without serializers a method takes and gives bytes
        self._call = untyped.unary_stream(method)(request, metadata=headers)

    def receive(self) -> Generator[Received]:
        """As the async `receive`."""
        try:
            yield _started(self._call.initial_metadata())
            for message in self._call:
                yield Received(*split_batch(message))
        except grpc.RpcError as error:
            # The call is its own error.
            failed: Any = error
            raise error_of(
                failed.code(),
                failed.details() or "",
                _text(failed.trailing_metadata()),
                target=self._target,
            ) from error
        raise _ended()

    def close(self) -> None:
        self._call.cancel()
        self._channel.close()
