"""What a store's changes are in the log's words."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    ConfigError,
    SourceChangedError,
    SourceUnavailableError,
    UndecodableError,
)
from penstock.event import ChangeEvent, Commit, Fragment, Operation
from penstock.flatten import unflatten
from penstock.store import Item, KeyType, Store, StreamViewType
from tests.children import lines_of
from tests.seeds import cases
from tests.sources_store.support import Story, caught_up, contents, make, source_of, standing_at
from tests.store.support import BOTH, NOW_MS, SetClock, opened
from tests.telling import follow


async def test_a_change_is_told_with_its_images_its_key_and_its_time(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "orders")
        db.put("orders", {"id": 1, "total": 30})
        db.put("orders", {"id": 1, "total": 31})
        db.delete("orders", {"id": 1})
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
    assert story.said == [("create", "orders")]
    one, two, three = story.changes
    assert [event.operation for event in story.changes] == [
        Operation.INSERT,
        Operation.REPLACE,
        Operation.DELETE,
    ]
    assert (one.source, one.database, one.tenant, one.collection) == (
        "db",
        "shop",
        "shop",
        "orders",
    )
    assert bytes(one.key) == b'{"id":1}'
    assert one.document_id == "1"
    assert bytes(one.full_document or b"") == b'{"id":1,"total":30}'
    assert one.full_document_before_change is None
    assert bytes(two.full_document_before_change or b"") == bytes(one.full_document or b"")
    assert two.full_document_as_of_event
    assert three.full_document is None
    assert bytes(three.full_document_before_change or b"") == bytes(two.full_document or b"")
    assert (one.timestamp, one.cluster_time.t) == (NOW_MS, NOW_MS // 1000)
    assert one.transaction is None


async def test_a_transaction_is_one_commit_of_all_its_tables(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        with db.transact() as transaction:
            transaction.put("a", {"id": 1})
            transaction.put("b", {"id": 1})
            transaction.put("a", {"id": 2})
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
    (commit,) = [item for item in story.items if len(item.events) == 3]
    assert [event.collection for event in commit.events] == ["a", "b", "a"]
    (name,) = {event.transaction for event in commit.events}
    assert name is not None
    assert len({event.event_id for event in story.events}) == len(story.events)


async def test_a_transaction_that_is_too_large_comes_in_fragments_and_ends_as_one(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        with db.transact() as transaction:
            for number in range(50):
                transaction.put("a" if number % 3 else "b", {"id": number})
        db.put("a", {"id": 100})
        source = source_of(tmp_path, start="beginning", batch_events_max=7, exclude=["b"])
        story = await caught_up(db, source)
    kinds = [type(item) for item in story.items if item.events]
    assert kinds == [Commit, *([Fragment] * 4), Commit, Commit]
    assert len(story.changes) == 34
    positions = [item.position for item in story.items if isinstance(item, Commit)]
    for position in positions:  # from any place that was said, all that follows comes once
        with opened(tmp_path) as db:
            again = await caught_up(db, source_of(tmp_path, exclude=["b"]), Story(position))
        ids = [event.event_id for event in story.events]
        assert [event.event_id for event in again.events] == ids[len(ids) - len(again.events) :]


async def test_what_expires_is_deleted(tmp_path: Path) -> None:
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        table = db.create_table("a").partition_key("id", KeyType.NUMBER).ttl("until")
        table.stream(BOTH).execute()
        db.put("a", {"id": 1, "until": clock.now_ms // 1000 + 10})
        clock.pass_(20)
        while db.sweep():
            pass
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
    assert [event.operation for event in story.changes] == [Operation.INSERT, Operation.DELETE]
    assert story.rows() == {}


VALUES: list[tuple[Any, bytes]] = [
    (5, b"5"),
    (-(1 << 63), b"-9223372036854775808"),
    ((1 << 63) - 1, b"9223372036854775807"),
    (1 << 63, b'{"$numberDecimal":"9223372036854775808"}'),
    (10**40, b'{"$numberDecimal":"1' + b"0" * 40 + b'"}'),
    (Decimal("0.10"), b'{"$numberDecimal":"0.1"}'),
    (Decimal("-1E-10"), b'{"$numberDecimal":"-0.0000000001"}'),
    (
        Decimal("0.12345678901234567890123456789012345678"),
        b'{"$numberDecimal":"0.12345678901234567890123456789012345678"}',
    ),
    (b"\x00\xff", b'{"$binary":{"base64":"AP8=","subType":"00"}}'),
    ({"b", "a"}, b'["a","b"]'),
    ({3, Decimal("1.5"), 2}, b'[{"$numberDecimal":"1.5"},2,3]'),
    ({b"b", b"a"}, b'[%b,%b]' % (
        b'{"$binary":{"base64":"YQ==","subType":"00"}}',
        b'{"$binary":{"base64":"Yg==","subType":"00"}}',
    )),
    ([1, [None, True, ""]], b'[1,[null,true,""]]'),
    ({"b": 1, "a": {"c": b""}}, b'{"a":{"c":{"$binary":{"base64":"","subType":"00"}}},"b":1}'),
]  # fmt: skip


async def test_every_value_is_told_exactly(tmp_path: Path) -> None:
    """F15."""
    with opened(tmp_path) as db:
        make(db, "a")
        for number, (value, _) in enumerate(VALUES):
            db.put("a", {"id": number, "v": value})
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
    told = [bytes(event.full_document or b"") for event in story.changes]
    assert told == [
        b'{"id":%d,"v":%b}' % (number, written) for number, (_, written) in enumerate(VALUES)
    ]


async def test_flattened_documents_come_back_as_the_store_has_them(tmp_path: Path) -> None:
    """P32: of changes, before images and copies, with dots in names and values of every kind."""
    item = {"id": 1, "a": {"b": {"c": Decimal("0.1")}, "d.e": {}}, "l": [{"x": 1}], "s": {b"a"}}
    with opened(tmp_path) as db:
        make(db, "a")
        db.put("a", item)
        flat = source_of(tmp_path, start="snapshot", flatten="dot")
        story = await caught_up(db, flat)
        db.put("a", {**item, "l": []})
        await caught_up(db, source_of(tmp_path, flatten="dot"), story)
        plain = await caught_up(db, source_of(tmp_path, start="beginning"))
    copied, changed = story.changes
    assert list(msgspec.json.decode(copied.full_document or b"")) == [
        "a.b.c", r"a.d\.e", "id", "l", "s",
    ]  # fmt: skip
    images = [
        (copied.full_document, plain.changes[0].full_document),
        (changed.full_document_before_change, plain.changes[1].full_document_before_change),
        (changed.full_document, plain.changes[1].full_document),
    ]
    for flattened, nested in images:
        back = unflatten(msgspec.json.decode(flattened or b""))
        assert back == msgspec.json.decode(nested or b"")


KEYS: list[tuple[KeyType, Any, KeyType | None, Any, str, bytes]] = [
    (KeyType.STRING, "o:1", None, None, "o:1", b'{"z":"o:1"}'),
    (KeyType.NUMBER, 10**30, None, None, "1" + "0" * 30,
     b'{"z":{"$numberDecimal":"1' + b"0" * 30 + b'"}}'),
    (KeyType.NUMBER, Decimal("1.5"), None, None, '{"$numberDecimal":"1.5"}',
     b'{"z":{"$numberDecimal":"1.5"}}'),
    (KeyType.BINARY, b"\x00", None, None, '{"$binary":{"base64":"AA==","subType":"00"}}',
     b'{"z":{"$binary":{"base64":"AA==","subType":"00"}}}'),
    (KeyType.STRING, "o", KeyType.NUMBER, 7, '["o",7]', b'{"z":"o","a":7}'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "sort", "second", "text", "written"), KEYS)
async def test_a_key_is_told_in_the_tables_order_the_same_in_stream_and_copy(
    tmp_path: Path,
    kind: KeyType,
    value: Any,
    sort: KeyType | None,
    second: Any,
    text: str,
    written: bytes,
) -> None:
    item: Item = {"z": value}
    with opened(tmp_path) as db:
        table = db.create_table("a").partition_key("z", kind).stream(BOTH)
        if sort is not None:
            table.sort_key("a", sort)
            item["a"] = second
        table.execute()
        db.put("a", {**item, "x": 1})
        db.delete("a", item)
        db.put("a", {**item, "x": 2})
        streamed = await caught_up(db, source_of(tmp_path, start="beginning"))
        copied = await caught_up(db, source_of(tmp_path, start="snapshot"))
    assert len(streamed.changes) == 3
    for event in (*streamed.changes, *copied.changes):
        assert (event.document_id, bytes(event.key)) == (text, written)
    assert copied.rows() == streamed.rows()


async def test_an_item_that_would_read_as_a_wrapper_stops_capture_before_it(
    tmp_path: Path,
) -> None:
    """Invariant 10."""
    with opened(tmp_path) as db:
        make(db, "a")
        db.put("a", {"id": 1})
        db.put("a", {"id": 2, "m": {"$oid": "no"}})
        story = Story()
        with pytest.raises(UndecodableError, match=r"\$oid.*exclude"):
            await follow(source_of(tmp_path, start="beginning"), story, lambda _: False)
        assert len(story.changes) == 1
        with pytest.raises(UndecodableError):
            await follow(source_of(tmp_path), story, lambda _: False)
        assert len(story.changes) == 1
        with pytest.raises(UndecodableError, match="an item of a"):
            await follow(source_of(tmp_path, start="snapshot"), Story(), lambda _: False)


async def test_a_tenant_is_told_by_the_rule(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a")
        db.put("a", {"id": 1, "who": "acme"})
        db.delete("a", {"id": 1})
        db.put("a", {"id": 2, "who": "acme"})
        db.put("a", {"id": 2, "who": "bolt"})
        rule = {"field": "who"}
        story = await caught_up(db, source_of(tmp_path, start="beginning", tenant=rule))
        assert [(one.operation.value, one.document_id, one.tenant) for one in story.changes] == [
            ("insert", "1", "acme"),
            ("delete", "1", "acme"),
            ("insert", "2", "acme"),
            ("delete", "2", "acme"),
            ("insert", "2", "bolt"),
        ]
        ends, begins = story.changes[-2:]
        assert ends.full_document_before_change is not None
        assert begins.full_document_before_change is None
        assert len({one.event_id for one in story.changes}) == 5
        db.disable_stream("a")
        db.enable_stream("a", StreamViewType.NEW_IMAGE)
        with pytest.raises(ConfigError, match="no item before a delete"):
            await follow(source_of(tmp_path, tenant=rule), Story(), lambda _: True)


@pytest.mark.parametrize("view", [StreamViewType.KEYS_ONLY, StreamViewType.OLD_IMAGE])
async def test_a_stream_that_holds_no_new_image_is_refused_unless_it_is_left_out(
    tmp_path: Path, view: StreamViewType
) -> None:
    with opened(tmp_path) as db:
        make(db, "a")
        db.create_table("thin").partition_key("id", KeyType.NUMBER).stream(view).execute()
        with pytest.raises(ConfigError, match=r"'thin'.*enable_stream.*exclude = \['thin'\]"):
            await follow(source_of(tmp_path), Story(), lambda _: True)
        db.put("a", {"id": 1})
        db.put("thin", {"id": 1})
        source = source_of(tmp_path, start="beginning", exclude=["thin"])
        story = await caught_up(db, source)
        assert contents(db, "a") == story.rows()
        # The remedy works: what the stream could not tell is a gap, and a copy makes it good.
        db.disable_stream("thin")
        db.enable_stream("thin", BOTH)
        db.put("thin", {"id": 2})
        again = await caught_up(db, source_of(tmp_path, start="snapshot"), Story())
        assert contents(db, "a", "thin") == again.rows()


async def test_a_quiet_store_is_told_to_be_quiet_and_what_is_not_captured_moves_the_position(
    tmp_path: Path,
) -> None:
    """Invariant 5."""
    with opened(tmp_path) as db:
        make(db, "a", "b")
        source = source_of(tmp_path, exclude=["b"])
        story = await follow(source, Story(), lambda story: len(story.items) == 3)
        assert story.events == []
        before = story.place.sequence
        db.put("b", {"id": 1})
        await follow(source, story, lambda story: story.place.sequence > before)
        assert story.events == []
        await source.close()


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_write_is_told_without_waiting_for_a_heartbeat(
    tmp_path: Path, elsewhere: bool
) -> None:
    """Of a writer in this process, or in another one."""
    with opened(tmp_path) as db:
        make(db, "a")
    source, story = source_of(tmp_path, heartbeat_seconds=600), Story()
    begun = asyncio.Event()
    reading = asyncio.ensure_future(
        follow(source, story, lambda story: len(story.changes) == 3, on_item=lambda _: begun.set())
    )
    await begun.wait()
    if elsewhere:
        code = (
            "import sys; from penstock import store\n"
            "with store.open(sys.argv[1]) as db:\n"
            "    for number in range(3): db.put('a', {'id': number})"
        )
        await lines_of(sys.executable, "-c", code, tmp_path)
    else:
        with opened(tmp_path) as db:
            for number in range(3):
                await asyncio.to_thread(db.put, "a", {"id": number})
            await reading
    await reading
    await source.close()


async def test_a_source_waits_for_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    source = source_of(tmp_path / "store")
    with pytest.raises(SourceUnavailableError, match="there is no store"):
        await follow(source, Story(), lambda _: True)
    with opened(tmp_path / "store") as db:
        make(db, "a")
        await caught_up(db, source)


async def test_a_source_waits_for_a_store_that_may_not_be_looked_into_yet(tmp_path: Path) -> None:
    """As while its folder is given to another user: it does not stop for good."""
    path = tmp_path / "store"
    path.symlink_to(path)
    source = source_of(path)
    with pytest.raises(SourceUnavailableError, match="looked into"):
        await follow(source, Story(), lambda _: True)
    path.unlink()
    with opened(path) as db:
        make(db, "a")
        await caught_up(db, source)


# --- whose store it is ----------------------------------------------------------------------------


async def test_another_store_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """F10."""
    with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        make(one, "a")
        make(two, "a")
        story = await caught_up(one, source_of(tmp_path / "one"))
        with pytest.raises(SourceChangedError, match="nothing was mixed"):
            await follow(source_of(tmp_path / "two"), story, lambda _: True)


@pytest.mark.parametrize("goes_on", [0, 1, 2, 3])
async def test_a_restored_store_is_refused_wherever_it_has_gone_on_to(
    tmp_path: Path, goes_on: int
) -> None:
    """F10: behind our position, exactly at it, and beyond, trimmed or not."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    with opened(path) as db:
        make(db, "a", records_max=1)
        db.put("a", {"id": 1})
    shutil.copytree(path, backup)
    with opened(path) as db:
        db.put("a", {"id": 2})
        db.put("a", {"id": 3})
        story = await caught_up(db, source_of(path))
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    with opened(path) as db:
        for number in range(goes_on):
            db.put("a", {"id": 10 + number})
        with pytest.raises(SourceChangedError, match="restored from a backup"):
            await follow(source_of(path), story, lambda _: True)


async def test_a_backup_that_is_not_older_than_our_position_is_gone_on_from(
    tmp_path: Path,
) -> None:
    path, backup = tmp_path / "store", tmp_path / "backup"
    with opened(path) as db:
        make(db, "a")
        db.put("a", {"id": 1})
        story = await caught_up(db, source_of(path, start="beginning"))
    shutil.copytree(path, backup)
    with opened(path) as db:
        db.put("a", {"id": 2})
    with opened(backup) as db:
        db.put("a", {"id": 3})
        await caught_up(db, source_of(backup), story)
        assert story.rows() == contents(db, "a")


async def test_a_store_that_is_replaced_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    """F10."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    with opened(path) as db:
        make(db, "a")
    shutil.copytree(path, backup)
    source, story = source_of(path), Story()
    with opened(path) as db:
        db.put("a", {"id": 1})
        await follow(source, story, standing_at(db))
    reading = asyncio.ensure_future(follow(source, story, lambda _: False))
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    with pytest.raises((SourceUnavailableError, SourceChangedError)):
        await reading
    with pytest.raises(SourceChangedError):
        await follow(source, story, lambda _: False)
    await source.close()


# --- all of it ------------------------------------------------------------------------------------

TABLES = ("a", "b", "c")
steps = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.sampled_from(TABLES), st.integers(0, 4), st.integers(0, 3) | st.none()),
            min_size=1,
            max_size=6,
        ),
        st.tuples(st.just("drop"), st.sampled_from(TABLES)),
        st.tuples(st.just("cycle"), st.sampled_from(TABLES)),
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=cases(25))
@given(steps=steps, batch=st.integers(1, 9), chunk=st.integers(1, 4), data=st.data())
def test_from_any_position_the_log_adds_up_to_the_store(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    batch: int,
    chunk: int,
    data: st.DataObject,
) -> None:
    """Invariants 2 and 9: random writes, transactions, dropped tables and streams begun anew; a
    crash after any commit, while tables are copied or not; begun before it all or amid it."""

    async def run() -> None:
        path = tmp_path_factory.mktemp("store")
        options = {"start": "snapshot", "batch_events_max": batch}
        source = source_of(path, snapshot_chunk_documents=chunk, **options)
        story, begins = Story(), data.draw(st.integers(0, len(steps)))
        with opened(path) as db:
            make(db, *TABLES)
            for number, step in enumerate([*steps, None]):
                if number >= begins:
                    stop = len(story.items) + data.draw(st.integers(1, 6))
                    await follow(source, story, crashing(stop, standing_at(db)))
                    drop_open(story)
                if step is not None:
                    apply(db, step)
            await caught_up(db, source, story)
            assert story.rows() == contents(db, *TABLES)
        ids = [event.event_id for event in story.events]
        assert len(ids) == len(set(ids)), "nothing is told twice from a durable position"
        assert whole_transactions(story)

    asyncio.run(run())


def crashing(stop: int, at_end: Callable[[Story], bool]) -> Callable[[Story], bool]:
    """Holds after so many items, or at the end."""
    return lambda story: len(story.items) >= stop or at_end(story)


def drop_open(story: Story) -> None:
    """A crash: what was staged of a transaction is dropped."""
    while story.items and isinstance(story.items[-1], Fragment):
        story.items.pop()


def whole_transactions(story: Story) -> bool:
    """Whether no transaction's changes are in two commits."""
    seen, under_way = set[str](), set[str]()
    for item in story.items:
        under_way |= {e.transaction for e in item.events if e.transaction is not None}
        if isinstance(item, Commit):
            if under_way & seen or len(under_way) > 1:
                return False
            seen |= under_way
            under_way = set[str]()
    return not under_way


Step = list[tuple[str, int, int | None]] | tuple[str, str]


def apply(db: Store, step: Step) -> None:
    """One step of a random story."""
    if isinstance(step, list):
        with db.transact() as transaction:
            for table, key, value in step:
                if value is None:
                    transaction.delete(table, {"id": key})
                else:
                    transaction.put(table, {"id": key, "n": value})
        return
    what, table = step
    if what == "drop":
        db.drop_table(table)
        make(db, table)
    else:
        db.disable_stream(table)
        db.put(table, {"id": 99, "n": 0})
        db.enable_stream(table, BOTH)


async def test_a_position_is_small_and_says_what_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a")
        story = await caught_up(db, source_of(tmp_path))
    position = msgspec.json.decode(story.position or "")
    assert position.keys() == {"store", "sequence", "scope", "life", "v"} - {"v"}
    assert len(story.position or "") < 150
    assert isinstance(story.items[0], Commit)
    assert all(not isinstance(event, ChangeEvent) for event in story.events)
