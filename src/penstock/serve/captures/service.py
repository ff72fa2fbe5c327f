"""What all protocols of capture subscriptions share: the hub, the limits, and who is there."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Final

from penstock.errors import PenstockError, ServiceBusyError, ServiceUnavailableError
from penstock.ports import LogReader
from penstock.serve.access.door import visitor
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.shared import SharedCaptures
from penstock.subscribe.captures import Hub, Limits, Session
from penstock.subscribe.captures.past import CurrentRows
from penstock.subscribe.captures.rationed import PastReader, Rationed
from penstock.subscribe.captures.session import UNLIMITED
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.telemetry import READERS

_TELLING_SECONDS: Final = 1.0
"""For the last words to clients when the service stops."""


class CaptureService:
    """Opens sessions; one for each connection or call of a protocol."""

    def __init__(
        self,
        log: LogReader,
        config: Callable[[], CapturesConfig],
        *,
        rows: CurrentRows | None = None,
        past: PastReader | None = None,
    ) -> None:
        """`config` is asked for every new session, so that a reload holds for it; `rows` are the
        current ones, if somebody keeps them; `past` is the log with what it does not hold any
        more, if an archive does."""
        self.log = log
        self.past: LogReader = log if past is None else past
        """For history and documents as they were."""
        self._archived = past
        self.rows = rows
        self.shared = SharedCaptures()
        self._config = config
        self._hub = Hub(log)
        self._sessions: set[Session] = set()
        self.stopped = asyncio.Event()
        """Nothing is served any more: say so, and close."""
        self._left = asyncio.Event()

    @property
    def config(self) -> CapturesConfig:
        """The limits now."""
        return self._config()

    async def seeking(self) -> LogReader:
        """`past`, to find where one answer begins: of the archive, at most `scan_bytes_max`."""
        if self._archived is None:
            return self.log
        trimmed = (await self.log.bounds()).trimmed
        return Rationed(self._archived, trimmed=trimmed, bytes_max=self.config.scan_bytes_max)

    def new_id(self) -> str:
        """An id for a request that has none: nobody else's."""
        return uuid.uuid4().hex

    @property
    def failure(self) -> PenstockError | None:
        """Why subscriptions get nothing now; for good, until a restart, if it is not transient."""
        return self._hub.failure

    @property
    def subscriptions(self) -> int:
        """How many there are."""
        return len(self._sessions)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator["CaptureService"]:
        """Follow the log while the block runs; at its end every session is closed, and who is
        connected gets a moment to be told."""
        following = asyncio.create_task(self._hub.run())
        try:
            yield self
        finally:
            self.stopped.set()
            for session in tuple(self._sessions):
                session.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TELLING_SECONDS):
                    while self._sessions:
                        self._left.clear()
                        await self._left.wait()
            following.cancel()
            await asyncio.wait({following})
            if not following.cancelled():
                following.result()  # a defect here must not pass unseen

    @contextlib.contextmanager
    def session(
        self, protocol: str, *, scope: Scope = EVERYTHING, credit: int = UNLIMITED
    ) -> Generator[Session]:
        """A session for who connected by `protocol`; closed with the block.

        Raises ServiceBusyError if there are as many as there may be, and RateLimitedError if this
        client has as many as one may have.
        """
        config = self._config()
        if self.stopped.is_set():
            raise ServiceUnavailableError(
                "this service is stopping. What you saved is safe: subscribe again with it."
            )
        if len(self._sessions) >= config.subscriptions_max:
            raise ServiceBusyError(
                readers_max=config.subscriptions_max,
                setting="subscriptions_max under [serve.captures]",
            )
        limits = Limits(
            requests_max=config.requests_max, maintenance_seconds=config.maintenance_interval
        )
        visiting = visitor()
        with contextlib.nullcontext() if visiting is None else visiting.subscribing():
            yield from self._held(
                protocol, Session(self.log, self._hub, scope=scope, limits=limits, credit=credit)
            )

    def _held(self, protocol: str, session: Session) -> Generator[Session]:
        self._sessions.add(session)
        READERS.labels(protocol).inc()
        try:
            yield session
        finally:
            READERS.labels(protocol).dec()
            self._sessions.discard(session)
            self._left.set()
            session.close()
