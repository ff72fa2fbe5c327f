"""What a Zero source makes of what an endpoint says."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from msgspec import Raw, json

from penstock.checks import Level
from penstock.errors import ConfigError, PositionLostError, SourceUnavailableError, UndecodableError
from penstock.event import Commit, Fragment, Operation
from penstock.ports import NamesThings
from penstock.sources.zero import reading
from penstock.sources.zero.doctor import doctor
from penstock.testing.contracts.source import changes, has_changes, has_items, told
from penstock.zero import messages as said
from penstock.zero.lexi import lexi_version
from tests.sources_zero.support import (
    ITEM,
    document,
    endpoint,
    events,
    facts,
    item,
    source,
    words,
)
from tests.zero.scripted import relation, row, table, transaction

IDENT = said.TableId(schema="public", name="item")


def last(items: Any) -> Commit:
    """The commit that it ends with."""
    assert isinstance(items[-1], Commit)
    return items[-1]


async def test_a_copy_is_told_as_one_with_types_and_keys() -> None:
    """Z2, Z6: and then what follows it, from a second connection."""
    rows = [
        item("a", n=1, at=1700000000123.456, j={"x": [1, 2.0]}, tags=["p"]),
        item("b", n=1 << 60),
    ]
    async with endpoint(*rows).running() as upstream:
        await upstream.say(*transaction(lexi_version(2), item("c", n=3)))
        items = await told(source(upstream.url), None, has_changes(3))
        copy = events(items)
        assert words(items) == [
            *("snapshot_started", "modify", "modify", "insert", "insert"),
            *("snapshot_completed", "insert"),
        ]
        assert facts(copy[0])["whole"]
        assert facts(copy[5])["collections"] == ["public.item"]
        assert facts(copy[0])["snapshot"] == facts(copy[5])["snapshot"]
        first, second, third = changes(items)
        assert bytes(first.full_document or b"") == (
            b'{"id":"a","n":{"$numberLong":"1"},"at":{"$date":"2023-11-14T22:13:20.123456Z"},'
            b'"j":{"x":[1,2.0]},"tags":["p"]}'
        )
        assert (first.database, first.collection, first.tenant) == ("public", "item", "public")
        assert (first.document_id, bytes(first.key)) == ("a", b'{"id":"a"}')
        assert first.snapshot
        assert first.transaction is None
        assert document(second) == {"id": "b", "n": 1 << 60, "at": None, "j": None, "tags": None}
        assert not third.snapshot
        assert third.transaction == f"{lexi_version(1)}:{lexi_version(2)}"
        asked = [dict(one) for one in upstream.requests]
        assert asked[0] == {"appID": "penstock", "shardNum": "0"}
        mark = lexi_version(1)
        assert asked[1] == {**asked[0], "lastWatermark": mark, "replicaVersion": mark}


async def test_a_copy_is_handed_on_in_parts() -> None:
    rows = [item(f"{number:05d}") for number in range(2 * reading.EVENTS_MAX)]
    async with endpoint(*rows).running() as upstream:
        items = await told(source(upstream.url), None, has_changes(len(rows)))
    parts = [one for one in items if isinstance(one, Fragment)]
    assert len(parts) >= 2
    assert max(len(one.events) for one in items) <= reading.EVENTS_MAX
    assert len({one.event_id for one in events(items)}) == len(events(items))


@pytest.mark.slow
async def test_updates_deletes_and_moved_keys() -> None:
    full = row(id="a", n=2, at=None, j=None, tags=None)
    async with endpoint(item("a", n=1)).running() as upstream:
        await upstream.say(
            *transaction(
                lexi_version(2),
                said.Update(relation=ITEM, key=None, new=row(id="a", n=2)),
                said.Update(relation=ITEM, key=None, new=full),
                said.Update(relation=ITEM, key=row(id="a"), new={**full, **row(id="b")}),
                said.Delete(relation=ITEM, key=row(id="b")),
            )
        )
        items = await told(source(upstream.url, start="now"), None, has_changes(5))
    partial, replaced, gone, come, deleted = changes(items)
    assert partial.operation is Operation.UPDATE
    assert partial.unchanged == ("at", "j", "tags")
    assert json.decode(partial.update_description or b"") == {
        "updatedFields": {"n": {"$numberLong": "2"}},
        "removedFields": [],
        "truncatedArrays": [],
    }
    assert replaced.operation is Operation.REPLACE
    assert (gone.operation, gone.document_id) == (Operation.DELETE, "a")
    assert (come.operation, come.document_id) == (Operation.INSERT, "b")
    assert (deleted.operation, deleted.document_id) == (Operation.DELETE, "b")


@pytest.mark.slow
async def test_every_change_of_a_table_is_told_in_its_place() -> None:
    spec = said.ColumnSpec(pos=9, data_type="date")
    added, renamed = said.NamedColumn("d", spec), said.NamedColumn("day", spec)
    metadata = Raw(b'{"rowKey":{"columns":["id"]}}')
    other = said.TableId("public", "other")
    index = said.IndexSpec(
        schema="public", table_name="item", name="i", unique=False, columns={"n": "ASC"}
    )
    async with endpoint().running() as upstream:
        await upstream.say(
            *transaction(
                lexi_version(2), said.AddColumn(table=IDENT, column=added), item("a", d=0)
            ),
            *transaction(
                lexi_version(3),
                said.UpdateColumn(table=IDENT, old=added, new=renamed),
                item("b", day=86_400_000),
            ),
            *transaction(
                lexi_version(4),
                said.DropColumn(table=IDENT, column="day"),
                said.UpdateTableMetadata(table=IDENT, old=metadata, new=metadata),
                said.CreateIndex(spec=index),
                said.DropIndex(id=said.TableId("public", "i")),
                said.Truncate(relations=(ITEM,)),
            ),
            *transaction(lexi_version(5), *table("other", {"id": "text!"}, key=["id"])),
            *transaction(
                lexi_version(6), said.RenameTable(old=other, new=said.TableId("public", "more"))
            ),
            *transaction(
                lexi_version(7), said.Insert(relation=relation("more", "id"), new=row(id="m"))
            ),
            *transaction(lexi_version(8), said.DropTable(id=said.TableId("public", "more"))),
            *transaction(lexi_version(9), item("end")),
        )
        items = await told(source(upstream.url, start="now"), None, has_changes(4))
    assert words(items) == [
        *("modify", "insert", "modify", "insert"),
        *("modify", "modify", "createIndexes", "dropIndexes", "drop", "create"),
        *("create", "createIndexes", "rename", "insert", "drop", "insert"),
    ]
    of = {event.document_id: document(event) for event in changes(items)}
    assert of["a"]["d"] == "1970-01-01"
    assert of["b"]["day"] == "1970-01-02"
    assert "day" not in of["end"]
    rename = next(event for event in events(items) if event.operation == "rename")
    assert facts(rename)["to"] == {"db": "public", "coll": "more"}
    assert facts(rename)["targetCaptured"]


async def test_after_a_restart_rows_are_read_by_what_was_announced_before() -> None:
    column = said.NamedColumn("d", said.ColumnSpec(pos=9, data_type="date"))
    async with endpoint().running() as upstream:
        await upstream.say(
            *transaction(
                lexi_version(2), said.AddColumn(table=IDENT, column=column), item("a", d=0)
            )
        )
        before = await told(source(upstream.url, start="now"), None, has_changes(1))
        await upstream.say(*transaction(lexi_version(3), item("b", d=0)))
        after = await told(source(upstream.url), last(before).position, has_changes(1))
    assert document(changes(after)[0])["d"] == "1970-01-01"


@pytest.mark.slow
async def test_what_is_rolled_back_was_never_said() -> None:
    async with endpoint().running() as upstream:
        begin, lost, _ = transaction(lexi_version(2), item("lost"))
        await upstream.say(begin, lost, said.Rollback(), *transaction(lexi_version(2), item("a")))
        items = await told(source(upstream.url, start="now"), None, has_changes(1))
    assert [event.document_id for event in changes(items)] == ["a"]


@pytest.mark.slow
async def test_a_transaction_too_large_for_memory_is_whole_and_one_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Z10: nothing of it is said before its commit."""
    monkeypatch.setattr("penstock.sources.zero.held.MEMORY_BYTES_MAX", 1 << 10)
    rows = [item(f"{number:05d}") for number in range(3 * reading.EVENTS_MAX + 1)]
    async with endpoint().running() as upstream:
        await upstream.say(*transaction(lexi_version(2), *rows), *transaction(lexi_version(3)))
        items = await told(source(upstream.url, start="now"), None, has_changes(len(rows)))
    commits = [one for one in items if isinstance(one, Commit) and one.events]
    assert len(commits) == 1
    names = [f"{number:05d}" for number in range(len(rows))]
    assert [event.document_id for event in changes(items)] == names


@pytest.mark.slow
async def test_only_what_is_durable_is_acknowledged() -> None:
    """Z1, invariant 1: what nobody called durable, the server is not told of."""
    async with endpoint(item("a")).running() as upstream:
        marks = [lexi_version(number) for number in (2, 3, 4)]
        for mark in marks:
            await upstream.say(*transaction(mark, item(mark)))
        mine = source(upstream.url)
        seen: list[Commit] = []
        stream = cast("AsyncGenerator[Commit | Fragment]", mine.changes(position=None))
        async with aclosing(stream) as items:
            async for one in items:
                if isinstance(one, Commit) and one.events:
                    seen.append(one)
                if len(seen) == 4 and not one.events:
                    break  # all are told, and a heartbeat after them
            assert not upstream.upstream
            await mine.acknowledge(seen[2].position)
            await upstream.until_told(["status", {"tag": "commit"}, {"watermark": marks[1]}])
    assert len(upstream.upstream) == 1


@pytest.mark.slow
async def test_a_copy_and_what_wants_none_are_not_acknowledged() -> None:
    """Z1, Z2: `told` acknowledges whatever it was given."""
    async with endpoint(item("a")).running() as upstream:
        await upstream.say(
            *transaction(lexi_version(2), item("b")),
            *transaction(lexi_version(3), item("c"), skip_ack=True),
            said.Status(watermark=lexi_version(4)),
            said.Status(watermark=lexi_version(5), ack=False),
        )
        expected = ["status", {"ack": True}, {"watermark": lexi_version(4)}]
        await told(source(upstream.url), None, lambda items: expected in upstream.upstream)
    assert upstream.upstream == [
        ["status", {"tag": "commit"}, {"watermark": lexi_version(2)}],
        expected,
    ]


@pytest.mark.slow
async def test_a_commit_is_acknowledged_with_whatever_is_durable_behind_it() -> None:
    """Z11: else a server whose last word wants no answer would keep all of its log for us."""
    async with endpoint(item("a")).running() as upstream:
        await upstream.say(
            *transaction(lexi_version(2), item("b")),
            said.Status(watermark=lexi_version(3), ack=False),
            *transaction(lexi_version(4), item("c"), skip_ack=True),
        )
        mine = source(upstream.url)
        stream = cast("AsyncGenerator[Commit | Fragment]", mine.changes(position=None))
        async with aclosing(stream) as items:
            async for one in items:
                # As the pump does it, for all that came at once.
                if isinstance(one, Commit) and f'"watermark":"{lexi_version(4)}"' in one.position:
                    await mine.acknowledge(one.position)
                    break
            expected = ["status", {"tag": "commit"}, {"watermark": lexi_version(2)}]
            await upstream.until_told(expected)
    assert upstream.upstream == [expected]


async def test_an_idle_watermark_moves_no_place_to_come_back_to() -> None:
    """Z4: who comes back names the last commit, whatever was acknowledged."""
    async with endpoint().running() as upstream:
        await upstream.say(said.Status(watermark=lexi_version(9)))
        mine = source(upstream.url, start="now")
        items = await told(mine, None, lambda items: f'"{lexi_version(9)}"' in last(items).position)
        back = source(upstream.url)
        await told(back, last(items).position, lambda _: len(upstream.requests) == 3)
        assert dict(upstream.requests[-1])["lastWatermark"] == lexi_version(1)


async def test_the_dialect_of_the_first_design() -> None:
    """Z1: `shardID`, and `ack`; the connection of the copy goes on."""
    async with endpoint(item("a")).running() as upstream:
        await upstream.say(
            *transaction(lexi_version(2), item("b")), said.AckRequested(watermark=lexi_version(3))
        )
        mine = source(upstream.url, dialect="first")
        done = ["ack", {"watermark": lexi_version(3)}]
        items = await told(mine, None, lambda items: done in upstream.upstream)
    assert len(changes(items)) == 2
    assert upstream.requests == [[("shardID", "penstock_0")]]
    assert ["ack", {"watermark": lexi_version(1)}] not in upstream.upstream


async def test_what_comes_again_is_not_told_again() -> None:
    """Invariant 7: right behind a reconnection; later, a watermark that goes back is an error."""
    async with endpoint().running() as upstream:
        await upstream.say(*transaction(lexi_version(2), item("b")))
        items = await told(source(upstream.url, start="now"), None, has_changes(1))
        again = transaction(lexi_version(1), item("old"))
        upstream.script = [*again, *transaction(lexi_version(3), item("c")), *again]
        upstream.filters = False
        mine = source(upstream.url)
        with pytest.raises(UndecodableError, match="behind"):
            await told(mine, last(items).position, has_changes(2))


# --- a lost position -----------------------------------------------------------------------------


async def reset(mode: str) -> tuple[list[Any], Any, Any]:
    """What is said when the server makes us begin anew behind its 4; and of a second attempt."""
    async with endpoint(item("a")).running() as upstream:
        items = await told(source(upstream.url), None, has_changes(1))
        position = last(items).position
        upstream.resets = "it was trimmed"
        upstream.snapshot = endpoint(item("b"), watermark=4).snapshot
        said_items: list[Any] = []
        error: Any = None
        mine = source(upstream.url, on_position_lost=mode)
        try:
            async for one in mine.changes(position=position):
                said_items.append(one)
                if isinstance(one, Commit) and f'"watermark":"{lexi_version(4)}"' in one.position:
                    break
        except PositionLostError as stopped:
            error = stopped
        return said_items, error, upstream


async def test_a_lost_position_stops_capture_with_a_gap() -> None:
    """Z4, Z11, invariant 4."""
    items, error, upstream = await reset("halt")
    (gap,) = events(items)
    assert gap.operation == "gap"
    assert facts(gap)["from"] == lexi_version(1)
    assert facts(gap)["to"] is None
    assert "trimmed" in str(error)
    async with upstream.running():
        mine = source(upstream.url)
        with pytest.raises(PositionLostError):
            # It was said, and is not said again.
            await told(mine, last(items).position, lambda again: bool(events(again)))


async def test_a_lost_position_is_made_good_by_a_copy() -> None:
    items, error, _ = await reset("snapshot")
    assert error is None
    assert words(items)[:2] == ["gap", "snapshot_started"]
    assert words(items)[-2:] == ["insert", "snapshot_completed"]
    assert facts(events(items)[0])["to"] == lexi_version(4)
    assert [event.document_id for event in changes(items)] == ["b"]


async def test_a_lost_position_may_be_passed_with_a_gap_alone() -> None:
    items, error, _ = await reset("gap")
    assert error is None
    assert words(items) == ["gap"]


# --- what cannot be told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (item("a", nobody="x"), "'nobody', which was not announced"),
        (said.Insert(relation=relation("ghost", "id"), new=row(id=1)), "ghost, a table"),
        (item("a", n="text"), r"n \(int8\): text where an integer"),
        (item("a", n=1 << 70), "beyond 64 bits"),
        (said.Insert(relation=ITEM, new=row(n=1)), "without all of its key"),
        (said.Update(relation=ITEM, key=row(id="b"), new=row(id="a")), "moves a row"),
        (said.Backfill(), "backfill"),
        (
            said.Insert(
                relation=ITEM, new={"id": Raw(b'"a"'), "j": Raw(b"[" * 9_000 + b"]" * 9_000)}
            ),
            "nested too deeply",
        ),
    ],
)
async def test_what_cannot_be_told_exactly_stops_capture(change: said.Change, what: str) -> None:
    """Invariant 10."""
    async with endpoint().running() as upstream:
        await upstream.say(*transaction(lexi_version(2), item("fine"), change))
        with pytest.raises(UndecodableError, match=what):
            await told(source(upstream.url, start="now"), None, has_changes(1))


async def test_of_tables_that_are_left_out_nothing_is_told() -> None:
    ghost = said.Insert(relation=relation("ghost", "id"), new=row(id=1))
    async with endpoint(item("a")).running() as upstream:
        await upstream.say(*transaction(lexi_version(2), ghost, item("b")))
        mine = source(upstream.url, exclude=["public.ghost"])
        items = await told(mine, None, has_changes(2))
    assert {event.collection for event in changes(items)} == {"item"}


async def test_tables_that_are_left_out_later_have_a_gap() -> None:
    async with endpoint(item("a")).running() as upstream:
        items = await told(source(upstream.url), None, has_changes(1))
        fewer = source(upstream.url, exclude=["public.item"])
        (first,) = await told(fewer, last(items).position, has_items)
        assert [event.operation for event in first.events] == ["scope_changed", "gap"]
        (again,) = await told(fewer, last([first]).position, has_items)
        assert not again.events


async def test_a_server_that_goes_away_is_tried_again_by_whoever_captures() -> None:
    async with endpoint().running() as upstream:
        url = upstream.url
        await told(source(url), None, has_items)
        (found,) = await doctor("zero", source(url).config)
        assert found.level is Level.OK
    nothing = f"nothing listens at {urlsplit(url).netloc}"
    with pytest.raises(SourceUnavailableError, match=nothing):
        await told(source(url), None, has_changes(1))
    (found,) = await doctor("zero", source(url).config)
    assert found.level is Level.ERROR
    assert nothing in found.detail
    unknown = "the host name nowhere.invalid is not known .* Correct the host"
    with pytest.raises(SourceUnavailableError, match=unknown):
        await told(source("ws://nowhere.invalid/changes/v0/stream"), None, has_changes(1))


async def test_a_proxy_of_the_environment_is_for_servers_elsewhere_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://me:sesame@127.0.0.1:9")
    async with endpoint().running() as upstream:
        await told(source(upstream.url), None, has_items)
    named = r"through the proxy http://127\.0\.0\.1:9, which the environment names"
    with pytest.raises(SourceUnavailableError, match=named) as refused:
        await told(source("ws://nowhere.invalid/changes/v0/stream"), None, has_changes(1))
    assert "sesame" not in str(refused.value)
    assert "is not known" not in str(refused.value)


async def test_a_server_that_refuses_us_stops_capture_and_no_key_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Z9: not even where everything is logged."""
    caplog.set_level(logging.DEBUG)
    async with endpoint().running() as upstream:
        mine = source(f"{upstream.url}?apiKey=sesame")
        await told(mine, None, lambda _: bool(upstream.requests))
        assert ("apiKey", "sesame") in upstream.requests[0]
        upstream.refuses = True
        with pytest.raises(ConfigError) as refused:
            await told(mine, None, has_changes(1))
        assert "sesame" not in str(refused.value)
    ours = [one for one in caplog.records if "sesame" in one.getMessage()]
    assert not [one for one in ours if one.name != "websockets.server"]


async def test_settings_that_name_no_table_of_the_server_are_told_with_the_nearest() -> None:
    """What is there is known from the copy on, and behind a restart from the position."""
    async with endpoint(item("a")).running() as upstream:
        mine = source(upstream.url, include=["public.it?m", "public.itms"], exclude=["nothing.*"])
        assert isinstance(mine, NamesThings)
        assert await mine.unmatched() == []  # nothing is captured yet
        items = await told(mine, None, has_changes(1))
        wrong = [
            "include 'public.itms' matches nothing that is there; the nearest are public.item",
            "exclude 'nothing.*' matches nothing that is there",
        ]
        assert await mine.unmatched() == wrong
        again = source(upstream.url, include=mine.config.include, exclude=mine.config.exclude)
        await told(again, last(items).position, has_items)
        assert await again.unmatched() == wrong
        named = source(upstream.url)
        await told(named, None, has_changes(1))
        assert await named.unmatched() == []
