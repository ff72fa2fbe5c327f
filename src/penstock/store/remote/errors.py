"""What goes wrong between a store's client and its server.

StoreError
├── ServerUnavailableError     transient: nobody answers at the socket; nothing was done
│   ├── ServerBusyError        it serves as many clients as it may
│   └── ServerStoppingError    it is about to end
├── OutcomeUnknownError        it broke off before it answered a write
├── RequestTooLargeError       a request over the server's limit; nothing was done
└── InternalServerError        a defect of the server; it logged what happened
"""

from penstock.store.errors import RefusedError, StoreError


class ServerUnavailableError(StoreError):
    """Nobody answers at the socket. Nothing was done, and asking again is safe."""

    code = "store.server_unavailable"
    name = "ServerUnavailable"
    transient = True


class ServerBusyError(ServerUnavailableError):
    """The server has as many connections as it may; this one was refused and may come back."""

    code = "store.server_busy"
    name = "ServerBusy"


class ServerStoppingError(ServerUnavailableError):
    """The server is about to end. What was asked for was not done."""

    code = "store.server_stopping"
    name = "ServerStopping"


class OutcomeUnknownError(StoreError):
    """The server broke off after a write was sent and before it was answered.

    It may be kept or not. Read before writing again, or write with a condition or version.
    """

    code = "store.outcome_unknown"
    name = "OutcomeUnknown"


class RequestTooLargeError(RefusedError):
    """A request over the server's limit; nothing was done, and the connection is closed."""

    code = "store.request_too_large"
    name = "RequestTooLarge"


class InternalServerError(StoreError):
    """A defect of the server. A write that it was to do is undone."""

    code = "store.internal"
    name = "InternalError"
