"""Work for a store that is killed meanwhile: steps that are the same each time they are done.

Each opens the store, does something, and closes it. All of a step comes of its number and the seed.
"""

# pyright: reportPrivateUsage=false

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from penstock import store
from penstock.store import (
    ConditionCheckFailedError,
    Item,
    KeyType,
    Retention,
    Store,
    StreamViewType,
    TableNotFoundError,
    Transaction,
    attr,
    plus,
)
from penstock.store.shards import ShardLimits
from penstock.store.syncing import SyncMode
from tests.store.support import NOW_MS, SetClock, waiting

Step = Callable[[Store, random.Random], object]
STEP_SECONDS = 10
LIMITS = ShardLimits(age_seconds=120, bytes_max=20_000)
BOTH = StreamViewType.NEW_AND_OLD_IMAGES
FAR = NOW_MS // 1000 + 10**6


def do(path: Path, step: Step, number: int, seed: int, sync: SyncMode) -> None:
    """Do a step; its time is of its number, and goes on while it sweeps."""
    clock = clock_at(number)
    with store.open(
        path, sweep_seconds=None, clock=clock, shards=LIMITS, sync=sync, sync_seconds=None
    ) as db:
        step(db, random.Random(f"{seed} {number}"))


def clock_at(number: int) -> SetClock:
    """The time of a step."""
    return SetClock(NOW_MS + number * STEP_SECONDS * 1000)


def long_key(number: int) -> str:
    """Keys over three of LMDB's, that share all but their ends."""
    return "x" * 960 + f"{number % 3}" * 500 + f"{number}"


def item(rng: random.Random, key: Item, *, expires: int | None = None) -> Item:
    """An item of a random size; few are larger than a page."""
    size = rng.choice((10, 200, 900, 900, 2000, 9000))
    made: Item = {**key, "n": rng.randrange(10**6), "data": rng.randbytes(size)}
    return made if expires is None else {**made, "until": expires}


def soon(number: int) -> int:
    """A second at which what step `number` writes has expired some steps later."""
    return NOW_MS // 1000 + (number + 2) * STEP_SECONDS


# --- the script -----------------------------------------------------------------------------------


def _tables(db: Store, _: random.Random) -> None:
    text, number = KeyType.STRING, KeyType.NUMBER
    kept = Retention(records_max=100_000)
    db.create_table("short").partition_key("id", text).ttl("until").stream(BOTH).retention(
        kept
    ).execute()
    db.create_table("long").partition_key("id", text).sort_key("at", number).ttl("until").stream(
        BOTH
    ).retention(kept).execute()
    db.create_table("keys").partition_key("id", KeyType.BINARY).stream(
        StreamViewType.KEYS_ONLY
    ).retention(Retention(records_max=8)).execute()
    db.create_table("plain").partition_key("id", text).ttl("until").execute()


def _puts(db: Store, rng: random.Random) -> None:
    for number in range(3):
        db.put("short", item(rng, {"id": f"{number}"}))
        db.put("long", item(rng, {"id": long_key(number), "at": number}))
        db.put("keys", item(rng, {"id": bytes([number])}))
        db.put("plain", item(rng, {"id": f"{number}"}))


def _updates(db: Store, rng: random.Random) -> None:
    db.put("short", item(rng, {"id": "0"}), condition=attr("n").exists())
    known = db.get("short", {"id": "1"})
    assert known is not None
    db.put("short", known)  # no change, so no record
    db.update("short", {"id": "1"}).set("n", plus(attr("n"), 1)).add("tags", {"a"}).execute()
    db.update("long", {"id": long_key(7), "at": 1}).set("made", True).execute()
    db.update("plain", {"id": "1"}).remove("data").execute()
    try:
        db.delete("short", {"id": "1"}, condition=attr("none").exists())
    except ConditionCheckFailedError:
        return
    raise AssertionError("the condition is false")


def _deletes(db: Store, _: random.Random) -> None:
    db.delete("short", {"id": "2"})
    db.delete("short", {"id": "never was"})
    db.delete("plain", {"id": "2"})
    db.delete("keys", {"id": b"\x02"})
    for number in range(3):
        db.delete("long", {"id": long_key(number), "at": number})


def _batch(db: Store, rng: random.Random) -> None:
    db.write_batch(
        puts=[
            ("short", item(rng, {"id": "3"})),
            ("long", item(rng, {"id": long_key(3), "at": 3})),
            ("keys", item(rng, {"id": b"\x03"})),
            ("plain", item(rng, {"id": "3"})),
        ],
        deletes=[("short", {"id": "0"}), ("plain", {"id": "0"})],
    )


def _transact(db: Store, rng: random.Random) -> None:
    with db.transact() as transaction:
        for number in (4, 5, 4):
            transaction.put("short", item(rng, {"id": f"{number}"}))
            transaction.put("long", item(rng, {"id": long_key(number), "at": number}))
        transaction.delete("short", {"id": "5"})
        transaction.use_token(b"once", b"what for", seconds=30)
    try:
        with db.transact() as transaction:
            transaction.put("short", item(rng, {"id": "undone"}))
            transaction.put("none", {"id": "x"})
    except TableNotFoundError:
        return
    raise AssertionError("there is no such table")


def _expiring(number: int) -> Step:
    def step(db: Store, rng: random.Random) -> None:
        for at in range(4):
            db.put("short", item(rng, {"id": f"t{at}"}, expires=soon(number)))
            db.put("plain", item(rng, {"id": f"t{at}"}, expires=soon(number)))
        db.put("long", item(rng, {"id": long_key(9), "at": 9}, expires=soon(number)))
        db.put("short", item(rng, {"id": "t0"}, expires=FAR))  # later than it was
        db.put("short", item(rng, {"id": "t9"}, expires=soon(number)))
        db.delete("short", {"id": "t9"})

    return step


def _on_overwrite(db: Store, rng: random.Random) -> None:
    assert db.get("short", {"id": "t1"}) is None
    db.put("short", item(rng, {"id": "t1"}))
    db.update("plain", {"id": "t1"}).set("n", 1).execute()
    db.delete("short", {"id": "t2"})


def _sweep(db: Store, _: random.Random) -> None:
    while db.sweep():
        pass


def _prune(db: Store, rng: random.Random) -> None:
    records = db.get_stream_records("short").execute().records
    db.prune_stream("short", until_sequence=records[len(records) // 2].sequence_number)
    db.alter_table_stream_retention("long", Retention(records_max=3))
    db.put("long", item(rng, {"id": long_key(3), "at": 3}))  # takes some of the oldest with it
    db.put("keys", item(rng, {"id": b"\x03"}))


def _consumer(db: Store, rng: random.Random) -> None:
    db.register_consumer("short", "kept", hold_bytes_max=100_000)
    consumer = db.consume("short", "gone", limit=3)
    consumer.step(lambda _: None)
    consumer.step(lambda _: None)
    db.put("short", item(rng, {"id": "3"}))
    db.forget_consumer("short", "gone")


def _together(db: Store, rng: random.Random) -> None:
    """Writes of four threads in one commit, of which one is undone and one is refused."""

    def undone(transaction: Transaction) -> None:
        transaction.put("short", item(rng, {"id": "undone"}))
        transaction.put("none", {"id": "x"})

    items = [item(rng, {"id": f"w{number}"}) for number in range(2)]
    writes: list[Callable[[], object]] = [
        partial(db.put, "short", items[0]),
        partial(db.delete, "long", {"id": long_key(3), "at": 3}),
        partial(db.write, undone),
        partial(db.put, "short", {"id": "w0"}, condition=attr("id").not_exists()),
        partial(db.put, "plain", items[1]),
    ]
    if not db._writable().waits:
        return  # they are not kept together
    with ThreadPoolExecutor(len(writes)) as pool, db.transact():
        for number, write in enumerate(writes, 1):
            pool.submit(write)
            while waiting(db) < number:
                time.sleep(0.0005)


def _streams(db: Store, rng: random.Random) -> None:
    db.disable_stream("keys")
    db.put("keys", item(rng, {"id": b"\x04"}))
    db.enable_stream("keys", BOTH, retention=Retention(records_max=100_000))
    db.put("keys", item(rng, {"id": b"\x04"}))
    db.enable_stream("plain", StreamViewType.NEW_IMAGE)
    db.put("plain", item(rng, {"id": "4"}))
    db.disable_stream("plain")


def _ttls(db: Store, rng: random.Random) -> None:
    db.set_ttl("short", None)
    db.set_ttl("long", "n")
    db.set_ttl("short", "until")
    db.put("short", item(rng, {"id": "t5"}, expires=FAR))


def _drop(db: Store, rng: random.Random) -> None:
    db.drop_table("long")
    db.drop_table("plain")
    db.create_table("plain").partition_key("id", KeyType.NUMBER).stream(BOTH).execute()
    db.put("plain", item(rng, {"id": 1}))


def _forget(db: Store, rng: random.Random) -> None:
    """The stream of a dropped table goes once it is as old as its retention, and holds nothing."""
    db.disable_stream("plain")
    db.prune_stream("plain", until_sequence=10**6)
    db.alter_table_stream_retention("keys", Retention(age_seconds=STEP_SECONDS))
    _sweep(db, rng)


def script() -> list[Step]:
    """Every kind of operation that writes."""

    def nothing(db: Store, rng: random.Random) -> None:
        return

    begin: list[Step] = [nothing, _tables, _puts, _updates, _deletes, _batch, _transact]
    expire: list[Step] = [_expiring(7), nothing, _on_overwrite, _sweep]
    return [*begin, *expire, _consumer, _together, _prune, _streams, _ttls, _drop, _sweep, _forget]


def go_on(db: Store, rng: random.Random) -> None:
    """Write to every table, and sweep."""
    for name in db.list_tables():
        table = db.describe_table(name)
        values: dict[str, Any] = {
            "S": "new",
            "N": 8,
            "B": b"n",
        }
        keys = [table.partition_key, *([table.sort_key] if table.sort_key else [])]
        db.put(name, item(rng, {key.name: values[key.type] for key in keys}))
    _sweep(db, rng)


# --- at random ------------------------------------------------------------------------------------


def at_random(seed: int, steps: int) -> Iterator[Step]:
    """The tables of the script, then anything."""
    rng = random.Random(seed)
    yield _tables
    for number in range(1, steps):
        yield _anything(rng.random(), number)


def _anything(chance: float, number: int) -> Step:
    if chance < 0.55:
        return _writes(number)
    if chance < 0.7:
        return _sweep
    if chance < 0.85:
        return _pruning
    return _switching if chance < 0.95 else _recreating


def _writes(number: int) -> Step:
    def step(db: Store, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 4)):
            with db.transact() as transaction:
                for _ in range(rng.randint(1, 5)):
                    table, key = _place(rng)
                    if rng.random() < 0.3:
                        transaction.delete(table, key)
                        continue
                    expires = rng.choice((None, None, soon(number), FAR))
                    transaction.put(table, item(rng, key, expires=expires))

    return step


def _place(rng: random.Random) -> tuple[str, Item]:
    number = rng.randrange(6)
    places: list[tuple[str, Any]] = [
        ("short", {"id": f"{number}"}),
        ("long", {"id": long_key(number), "at": number % 2}),
        ("keys", {"id": bytes([number])}),
        ("plain", {"id": f"{number}"}),
    ]
    return rng.choice(places)


def _pruning(db: Store, rng: random.Random) -> None:
    info = db.get_stream_info(rng.choice(("short", "long", "keys")))
    oldest, latest = info.oldest_sequence, info.latest_sequence
    if oldest is not None and latest is not None:
        db.prune_stream(info.table_name, until_sequence=rng.randint(oldest, latest))
    kept = Retention(records_max=rng.randint(1, 60), age_seconds=rng.choice((None, 60)))
    if info.enabled:
        db.alter_table_stream_retention(info.table_name, kept)


def _switching(db: Store, rng: random.Random) -> None:
    table = rng.choice(("short", "long", "keys"))
    if db.describe_table(table).stream is not None:
        db.disable_stream(table)
    if rng.random() < 0.7:
        view = rng.choice(list(StreamViewType))
        db.enable_stream(table, view, retention=Retention(records_max=rng.randint(1, 60)))
    db.set_ttl("plain", rng.choice(("until", None, "n")))


def _recreating(db: Store, _: random.Random) -> None:
    db.drop_table("long")
    db.create_table("long").partition_key("id", KeyType.STRING).sort_key(
        "at", KeyType.NUMBER
    ).stream(BOTH).execute()
