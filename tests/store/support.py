"""Stores for tests."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from msgspec import Struct

from penstock import store
from penstock.store import KeyType, Page, Store, StreamViewType
from tests.waiting import wait_until

BOTH = StreamViewType.NEW_AND_OLD_IMAGES
FIRST = 3
"""The sequence of the first record of a store's first table: the catalog tells of it before."""
NOW_MS = 1_700_000_000_000


class SetClock:
    """A clock that a test sets."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self.steady = 0.0

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_seconds(self) -> float:
        return self.steady

    def pass_(self, seconds: float) -> None:
        """Let time go by, as it does."""
        self.now_ms += round(seconds * 1000)
        self.steady += seconds


@contextmanager
def opened(path: Path, clock: SetClock | None = None) -> Generator[Store]:
    """A store that nobody sweeps."""
    with store.open(path, sweep_seconds=None, clock=clock or SetClock()) as db:
        yield db


def with_table(db: Store, *, view: StreamViewType | None = BOTH, ttl: str | None = None) -> Store:
    """The store, with a table `t` of partition key `id`."""
    table = db.create_table("t").partition_key("id", KeyType.STRING)
    if ttl is not None:
        table.ttl(ttl)
    if view is not None:
        table.stream(view)
    table.execute()
    return db


def commits(db: Store) -> int:
    """How many LMDB has kept."""
    with db._reading() as txn:
        return txn.id()


def waiting(db: Store) -> int:
    """How many writes wait to be kept together."""
    return len(db._together._waiting)


@contextmanager
def together(db: Store, calls: Sequence[Callable[[], object]]) -> Generator[list[Future[object]]]:
    """Call each in a thread of its own, in this order, all while another transaction is open; at
    the end of the block that ends, and what they return is there."""
    with ThreadPoolExecutor(max(1, len(calls))) as pool, db.transact():
        futures = list[Future[object]]()
        for call in calls:
            futures.append(pool.submit(call))
            wait_until(lambda: waiting(db) == len(futures), "it waits")
        yield futures


def told(page: Page) -> list[tuple[str, object, object]]:
    """What the records of a page say: event, item before, item after."""
    return [(str(one.event_type), one.old_image, one.new_image) for one in page.records]


def all_records(db: Store, table: str = "t") -> list[tuple[str, object, object]]:
    """What the whole stream of a table says."""
    return told(db.get_stream_records(table).execute())


def name_of(value: object) -> str:
    """As `repr`, but a set's elements in one order, whichever process asks: a test's id."""
    match value:
        case set():
            elements = sorted(name_of(element) for element in cast("set[object]", value))
            return f"{{{', '.join(elements)}}}"
        case list() | tuple():
            return f"[{', '.join(name_of(element) for element in cast('list[object]', value))}]"
        case dict():
            pairs = cast("dict[str, object]", value).items()
            return f"{{{', '.join(f'{name}: {name_of(one)}' for name, one in pairs)}}}"
        case Struct():
            fields = (name_of(getattr(value, name)) for name in value.__struct_fields__)
            return f"{type(value).__name__}({', '.join(fields)})"
        case _:
            return repr(value)
