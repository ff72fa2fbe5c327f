"""A copy beside the streams: nothing stale, nothing lost, whoever writes meanwhile."""

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from penstock.errors import RequestError
from penstock.event import ChangeEvent, Commit, Fragment, SystemEvent
from penstock.ports import ChangeSource, Copies, Retains, Rewinds
from penstock.sources.store.positions import parse_position
from penstock.store import KeyType, Retention, Store
from tests.seeds import seed_of
from tests.sources_store.support import Story, caught_up, contents, make, source_of, standing_at
from tests.store.support import BOTH, SetClock, opened
from tests.telling import follow
from tests.waiting import turns, until


def test_the_source_fulfils_its_ports(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    assert isinstance(source, ChangeSource)
    assert isinstance(source, Copies)
    assert isinstance(source, Rewinds)
    assert isinstance(source, Retains)


async def test_a_copy_comes_between_its_announcements_and_goes_on_after_a_crash(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        for number in range(7):
            db.put("a", {"id": number})
            db.put("b", {"id": number})
        story = Story()
        while not story.items or not standing_at(db)(story):
            source = source_of(tmp_path, start="snapshot", snapshot_chunk_documents=3)
            stop = len(story.items) + 2
            await follow(source, story, enough(stop))
            await source.close()
    assert [operation for operation, _ in story.said] == ["snapshot_started", "snapshot_completed"]
    assert len(story.changes) == 14, "each row once"
    assert all(event.snapshot for event in story.changes)
    assert len({event.event_id for event in story.events}) == 16
    said = [e for e in story.events if isinstance(e, SystemEvent)]
    started, completed = [msgspec.json.decode(event.description) for event in said]
    assert started["collections"] == completed["collections"] == ["shop.a", "shop.b"]
    assert (completed["documents"], completed["whole"]) == (14, True)
    assert started["snapshot"] == completed["snapshot"]


def enough(stop: int) -> Callable[[Story], bool]:
    """Holds after so many items."""
    return lambda story: len(story.items) >= stop


async def test_a_wrong_clock_hides_nothing_from_a_copy_and_what_expires_is_deleted_once(
    tmp_path: Path,
) -> None:
    """F8, F11: an item is there until its removal is told, in the copy as in the stream."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        table = db.create_table("a").partition_key("id", KeyType.NUMBER).ttl("until")
        table.stream(BOTH).execute()
        # Long expired by the clock of the source, which is the machine's.
        db.put("a", {"id": 1, "until": clock.now_ms // 1000 + 10})
        db.put("a", {"id": 2, "until": clock.now_ms // 1000 + 20})
        db.put("a", {"id": 3})
        story = await caught_up(db, source_of(tmp_path, start="snapshot"))
        assert story.rows() == contents(db, "a")
        clock.pass_(15)
        while db.sweep():
            pass
        await caught_up(db, source_of(tmp_path), story)
        assert [e.document_id for e in story.changes if e.full_document is None] == ["1"]
        assert story.rows() == contents(db, "a")


@pytest.mark.slow
@pytest.mark.parametrize("writers", [3])
async def test_a_copy_under_writers_ends_with_what_is_there_and_no_row_is_older_than_its_place(
    tmp_path: Path, writers: int
) -> None:
    """Invariant 9: every item counts its own writes, and in the log that count never falls."""
    rng = random.Random(seed_of("store-copy"))
    keys = [(table, number) for table in ("a", "b") for number in range(150)]
    stop = threading.Event()

    def write(db: Store, seed: int) -> None:
        mine = random.Random(seed)
        while not stop.is_set():
            with db.transact() as transaction:
                for table, number in mine.sample(keys, 3):
                    if mine.random() < 0.2:
                        transaction.delete(table, {"id": number})
                    else:
                        transaction.put(table, {"id": number, "n": count()})

    counter = [0]

    def count() -> int:
        """Inside a transaction, so that it rises as they do."""
        counter[0] += 1
        return counter[0]

    with opened(tmp_path) as db:
        make(db, "a", "b")
        db.write_batch(puts=[(table, {"id": number, "n": 0}) for table, number in keys])
        threads = [
            threading.Thread(target=write, args=(db, rng.getrandbits(32))) for _ in range(writers)
        ]
        for thread in threads:
            thread.start()
        source, story = source_of(tmp_path, start="snapshot", snapshot_chunk_documents=9), Story()

        def write_twice(item: Commit | Fragment) -> None:
            """Of the items in the next chunk, too: their changes come with it."""
            copied = [e for e in item.events if isinstance(e, ChangeEvent) and e.snapshot]
            for event in copied[-1:]:
                for _ in range(2):
                    number = min(int(event.document_id) + 2, 149)
                    with db.transact() as transaction:
                        transaction.put(event.collection, {"id": number, "n": count()})

        try:
            await follow(
                source,
                story,
                lambda story: ("snapshot_completed", "") in story.said,
                on_item=write_twice,
            )
        finally:
            stop.set()
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        await caught_up(db, source, story)
        assert story.rows() == contents(db, "a", "b")
    newest = dict[tuple[str, bytes], int]()
    for event in story.changes:
        place = (event.collection, bytes(event.key))
        if event.full_document is not None:
            told = msgspec.json.decode(event.full_document)["n"]
            assert told >= newest.get(place, 0), "a row that is older than what was said before"
            newest[place] = told


# --- asked for ------------------------------------------------------------------------------------


async def asking(source: Any, story: Story, names: list[str], known: Any = ()) -> list[str]:
    """Ask for a copy while the source is followed until the copy is complete."""
    capturing, begun = asyncio.Event(), story.said.count(("snapshot_completed", ""))

    def done(story: Story) -> bool:
        return story.said.count(("snapshot_completed", "")) > begun

    reading = asyncio.ensure_future(follow(source, story, done, on_item=lambda _: capturing.set()))
    try:
        await capturing.wait()
        copied: list[str] = await source.copy(names, known=known)
        await reading
        return copied
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await source.close()


async def test_a_copy_that_is_asked_for_begins_at_once_and_is_durable_when_it_is_answered(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        db.put("a", {"id": 1})
        source, story = source_of(tmp_path, heartbeat_seconds=60), Story()
        assert await asking(source, story, ["a"]) == ["shop.a"]
        assert story.rows() == contents(db, "a")
        assert await asking(source, story, ["shop.b", "a"]) == ["shop.b", "shop.a"]
        assert await asking(source, story, []) == ["shop.a", "shop.b"]
        started = [e for e in story.events if e.operation == "snapshot_started"]
        whole = [msgspec.json.decode(event.description)["whole"] for event in started]  # type: ignore[union-attr]
        assert whole == [False, False, True]


async def test_what_is_said_before_a_copy_begins_does_not_answer_who_waits_for_it(
    tmp_path: Path,
) -> None:
    """A look finds writes and begins the copy: the commits of the writes do not speak of it."""
    with opened(tmp_path) as db:
        make(db, "a")
        source, story = source_of(tmp_path, heartbeat_seconds=60), Story()
        changes = cast("AsyncGenerator[Commit | Fragment]", source.changes(position=None))
        async with aclosing(changes) as items:
            story.take(await anext(items))
            waiting = asyncio.create_task(source.copy(["a"], known=()))
            await until(lambda: source._desk.asked)  # pyright: ignore[reportPrivateUsage]
            db.put("a", {"id": 1})
            while parse_position(story.position or "").copying is None:
                assert not waiting.done()
                story.take(await anext(items))
                await source.acknowledge(story.position or "")
                await turns(20)
            await waiting
        await source.close()
        assert len(story.changes) == 1


async def test_what_is_not_captured_is_not_copied(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        db.create_table("t").partition_key("id", KeyType.NUMBER).execute()
        source, story = source_of(tmp_path, exclude=["b"]), Story()
        with pytest.raises(RequestError, match="not being captured now"):
            await source.copy(["a"], known=())
        for name in ("b", "t", "other.a"):
            with pytest.raises(RequestError, match="captures no table"):
                await asking(source, story, [name])
        # One that was dropped, and that the log has told of, is copied: its rows are told as gone.
        assert await asking(source, story, ["gone"], {("shop", "gone")}) == ["shop.gone"]
        await source.close()


# --- back, and how near a loss is -----------------------------------------------------------------


async def test_a_rewound_source_tells_everything_again_with_the_same_ids(tmp_path: Path) -> None:
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        make(db, "a", "b")
        for number in range(4):
            with db.transact() as transaction:
                transaction.put("a", {"id": number})
                transaction.put("b", {"id": number})
            clock.pass_(10)
        source = source_of(tmp_path)
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
        assert story.position is not None
        ids = [event.event_id for event in story.changes]
        second = story.changes[3]
        for to, by_seconds, again in (
            (second.position, None, 6),
            (story.position_at(3), None, 6),
            (None, 15.0, 4),
            (None, 1e9, 8),
        ):
            place = await source.rewound(story.position, to=to, by_seconds=by_seconds)
            told = await caught_up(db, source, Story(place))
            assert [event.event_id for event in told.changes] == ids[-again:], (to, by_seconds)
        for nonsense in ("x", "1:2", f"{story.place.store}:999"):
            with pytest.raises(RequestError, match="no place before"):
                await source.rewound(story.position, to=nonsense, by_seconds=None)
        db.prune_stream("a", until_sequence=8)
        with pytest.raises(RequestError, match=r"removed changes of 'a'"):
            await source.rewound(story.position, to=second.position, by_seconds=None)
        near = await source.rewound(story.position, to=None, by_seconds=5.0)
        assert parse_position(near).sequence == story.place.sequence - 2
        await source.close()


async def test_how_far_a_position_is_from_a_loss(tmp_path: Path) -> None:
    """Of the table that is nearest to one; nothing to say of before the first was removed."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        make(db, "a", "b")
        source, story = source_of(tmp_path, start="beginning"), Story()
        for number in range(6):
            db.put("ab"[number % 2], {"id": number})
            clock.pass_(10)
        await follow(source, story, enough(6))  # up to the item 2, at 20 s
        assert story.position is not None
        assert await source.seconds_to_loss(story.position) is None
        db.prune_stream("b", until_sequence=6)  # the oldest of `b` is now of 30 s, unread
        assert await source.seconds_to_loss(story.position) == 0.0
        await follow(source, story, enough(8))
        assert await source.seconds_to_loss(story.position) == pytest.approx(20)
        db.alter_table_stream_retention("b", Retention.by_hand(bytes_max=1 << 20))
        assert await source.seconds_to_loss(story.position) is None
        await source.close()


async def test_events_of_a_copy_are_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    """P26."""
    with opened(tmp_path) as db:
        make(db, "a")
        db.put("a", {"id": 1})
        source, story = source_of(tmp_path, start="snapshot"), Story()
        await follow(source, story, lambda story: bool(story.changes))
        again = await caught_up(db, source, Story(story.position_at(-2)))
        assert isinstance(again.changes[0], ChangeEvent)
        assert again.changes == story.changes
