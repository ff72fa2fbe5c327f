"""What both clients say when the connection to a store's server breaks."""

from pathlib import Path

from penstock.store.remote.errors import OutcomeUnknownError, ServerUnavailableError


class Lost(Exception):  # noqa: N818 - never leaves the clients
    """The connection broke."""

    def __init__(self, cause: str, *, sent: bool) -> None:
        super().__init__(cause)
        self.sent = sent
        """Whether the whole request had been handed over, so that it may have been done."""


def unavailable(address: Path, error: OSError) -> ServerUnavailableError:
    """Nobody answers there."""
    return ServerUnavailableError(
        f"no store's server answers at {address} ({error.strerror or error}). Nothing was done. "
        f"Is `penstock store serve` running?"
    )


def gone(address: Path, lost: Lost) -> ServerUnavailableError:
    """It broke off before anything was done."""
    return ServerUnavailableError(
        f"the store's server at {address} broke off ({lost}). Nothing was done. Try again."
    )


def unknown(address: Path, lost: Lost) -> OutcomeUnknownError:
    """A write was sent, and its answer is missing."""
    return OutcomeUnknownError(
        f"the store's server at {address} broke off before it answered a write ({lost}), which "
        f"may be kept or not. Read before writing again, or write with a condition or an expected "
        f"version."
    )


def undone(address: Path, lost: Lost) -> ServerUnavailableError:
    """A transaction that was not to be kept yet is lost."""
    return ServerUnavailableError(
        f"the store's server at {address} broke off inside a transaction ({lost}), which is "
        f"undone. Nothing was changed. Try again."
    )
