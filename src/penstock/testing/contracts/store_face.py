"""A face of a store under test, with a store of the test's own behind it."""

import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from penstock.store import (
    AnyStore,
    KeyType,
    Retention,
    StreamViewType,
)
from penstock.testing.contracts.log import ManualClock

BOTH = StreamViewType.NEW_AND_OLD_IMAGES


class StoreFace:
    """Inherit, and give `opened`."""

    def opened(self, folder: Path, clock: ManualClock) -> AbstractContextManager[AnyStore]:
        """The store in `folder`, made if it is not there. Nothing sweeps it but `sweep`."""
        raise NotImplementedError

    @contextmanager
    def store(
        self,
        *,
        view: StreamViewType | None = BOTH,
        ttl: str | None = None,
        retention: Retention | None = None,
        clock: ManualClock | None = None,
    ) -> Generator[AnyStore]:
        """A store of this test's own, with a table `t` of partition key `id`."""
        with (
            tempfile.TemporaryDirectory() as folder,
            self.opened(Path(folder), clock or ManualClock()) as db,
        ):
            table = db.create_table("t").partition_key("id", KeyType.STRING)
            if ttl is not None:
                table.ttl(ttl)
            if view is not None:
                table.stream(view)
            if retention is not None:
                table.retention(retention)
            table.execute()
            yield db
