"""The open store and both clients of its server keep one contract of secondary indexes."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from penstock import store
from penstock.store import AnyStore, Client
from penstock.testing.contracts import ManualClock, StoreIndexContract
from tests.store.faces import opened_and_served, waiting_client


class TestStore(StoreIndexContract):
    """The store itself."""

    @contextmanager
    def opened(self, folder: Path, clock: ManualClock) -> Generator[AnyStore]:
        with store.open(folder / "store", sweep_seconds=None, clock=clock) as db:
            yield db


class TestClient(StoreIndexContract):
    """The client that waits."""

    @contextmanager
    def opened(self, folder: Path, clock: ManualClock) -> Generator[AnyStore]:
        with opened_and_served(folder, clock) as address, Client(address) as client:
            yield client


class TestAsyncClient(StoreIndexContract):
    """The client that is awaited, through an adapter that waits."""

    @contextmanager
    def opened(self, folder: Path, clock: ManualClock) -> Generator[AnyStore]:
        with opened_and_served(folder, clock) as address, waiting_client(address) as client:
            yield client
