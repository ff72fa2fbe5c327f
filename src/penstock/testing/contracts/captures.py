"""What every server of capture subscriptions promises (record 0024).

    class TestWebSocket(CaptureServerContract):
        @asynccontextmanager
        async def serving(self, service):
            async with my_server(service) as address:
                yield MyEndpoint(address)   # a CaptureEndpoint

A transport that lacks a feature says so by an attribute of its class. The trap ids are E1 to E15.
"""

import asyncio
import contextlib

from penstock.event import Operation
from penstock.progress import Progress
from penstock.testing.contracts.captures_base import (
    ALL,
    append_large,
    captures,
    data,
    marker,
    nothing_more,
    of_kind,
    safe_at,
    sequences,
    until,
)
from penstock.testing.contracts.captures_envelopes import EnvelopesContract
from penstock.testing.contracts.captures_several import SeveralRequestsContract
from penstock.testing.contracts.capturing import (
    CaptureClient,
    Heard,
    changed,
    committed,
    reshaped,
    singles,
    told,
)


class CaptureServerContract(EnvelopesContract, SeveralRequestsContract):
    """Inherit, and give `serving`."""

    # --- what is sent ---------------------------------------------------------------------------

    async def test_history_and_live_are_one_stream_without_a_hole(self) -> None:
        """E9, E10: under concurrent commits, from whatever moment one connects at."""
        async with self.served() as served:
            await served.log.append(singles(1, 20))

            async def write() -> None:
                for at in range(21, 121, 2):
                    await served.log.append(singles(at, at + 1))

            writing = asyncio.create_task(write())
            async with contextlib.AsyncExitStack() as stack:
                live: list[tuple[CaptureClient, int]] = []
                for number in range(5):
                    client = await stack.enter_async_context(served.connect(ALL))
                    found = await captures(client, 120 if number % 2 else 40)
                    assert found[0].kind == "confirmed"
                    assert sequences(found) == list(range(1, len(found)))
                    asked = {"id": "live", "criteria": data()}
                    client = await stack.enter_async_context(served.connect(asked))
                    live.append((client, (await client.next()).sequence))
                await writing
                await served.log.append(singles(121, 121))
                for client, after in live:
                    found = await captures(client, 121 - after)
                    assert sequences(found) == list(range(after + 1, 122))

    async def test_the_confirmation_comes_first_and_says_where_the_request_begins(self) -> None:
        """E9: whatever is committed after it comes, and nothing before it."""
        async with self.served() as served:
            await served.log.append(singles(1, 3))
            async with served.connect({"id": "a"}) as client:
                said = await client.next()
                assert (said.kind, said.ids, said.sequence) == ("confirmed", ("a",), 3)
                assert said.version == 3
                assert not said.waiting
                await served.log.append(singles(4, 4))
                found = await captures(client, 3)
                assert [one.operation for one in found] == ["begin", "insert", "commit"]
                assert found[1].sequence == 4

    async def test_a_request_without_an_id_is_told_one(self) -> None:
        async with self.served() as served:
            await served.log.append(singles(1, 1))
            async with served.connect({"since": "beginning", "criteria": data()}) as client:
                said, capture = await captures(client, 1)
                assert said.ids[0]
                assert capture.ids == said.ids

    async def test_only_what_matches_comes_as_header_or_with_its_body(self) -> None:
        """E6, E12: alternatives, keys, operations; a remove carries its identity only."""
        async with self.served() as served:
            await served.log.append(
                [
                    committed(changed(1, key=1)),
                    committed(changed(2, collection="lines", key=1)),
                    committed(changed(3, key=2)),
                    committed(changed(4, key=1, operation=Operation.DELETE)),
                ]
            )
            criteria = [
                *data(entityType="orders", entityPrimaryKey=[1]),
                *data(entityType="lines", operation=["update"]),
            ]
            for content in ("header", "body"):
                asked = {**ALL, "criteria": criteria, "content": content}
                async with served.connect(asked) as client:
                    inserted, deleted = of_kind(await captures(client, 2), "capture")
                    assert [inserted.sequence, deleted.sequence] == [1, 4]
                    assert (inserted.version, inserted.index) == (1, 1)
                    assert (inserted.area, inserted.entity_type) == ("data", "orders")
                    assert (inserted.operation, deleted.operation) == ("insert", "delete")
                    if content == "body":
                        assert inserted.body is not None
                        assert inserted.body["fullDocument"] == {"_id": 1, "at": 1}
                        assert not deleted.body
                    else:
                        assert inserted.body is None

    async def test_a_wildcard_beside_an_area_is_everything(self) -> None:
        """E6."""
        async with self.served() as served:
            await served.log.append(
                [
                    committed(changed(1)),
                    committed(reshaped(2, "create", to="")),
                    committed(told(3, "started")),
                ]
            )
            criteria = [{"area": "any"}, {"area": "data"}]
            async with served.connect({**ALL, "criteria": criteria}) as client:
                found = await captures(client, 9)
            assert [one.operation for one in of_kind(found, "capture")] == [
                *("begin", "insert", "commit"),
                *("begin", "create", "commit"),
                *("begin", "started", "commit"),
            ]

    async def test_a_thousand_events_of_one_commit_come_whole(self) -> None:
        """E4: through a small buffer; and from its middle by both coordinates, exclusive and
        inclusive."""
        async with self.served() as served:
            await served.log.append([committed(*(changed(n, ordinal=n) for n in range(1_000)))])
            credit = 4 if self.has_credits else None
            async with served.connect(ALL, credit=credit) as client:
                found: list[Heard] = []
                while len(sequences(found)) < 1_000:
                    found += await captures(client, 4)
                    if credit:
                        await client.request(4)
            assert sequences(found) == list(range(1, 1_001))
            middle = of_kind(found, "capture")[499]
            assert (middle.version, middle.index) == (1, 500)
            for since, first in (
                ({"progress": middle.progress}, 501),
                ({"version": 1, "index": 500}, 500),
            ):
                async with served.connect({**ALL, "since": since}) as client:
                    found = await captures(client, 1_001 - first)
                assert sequences(found) == list(range(first, 1_001))

    async def test_a_header_has_the_counts_by_which_completeness_is_proved(self) -> None:
        """E11: under a filter too."""
        async with self.served() as served:
            events = [
                changed(n, ordinal=n, collection="orders" if n % 3 else "lines") for n in range(300)
            ]
            await served.log.append([committed(*events)])
            criteria = [{"area": "infrastructure"}, *data(entityType="lines")]
            async with served.connect({**ALL, "criteria": criteria}) as client:
                found = of_kind(await captures(client, 102), "capture")
            begin, *lines, end = found
            assert (begin.operation, begin.index) == ("begin", 0)
            assert (end.operation, end.index) == ("commit", 301)
            for edge in (begin, end):
                assert edge.area == "infrastructure"
                assert edge.mutation_count == 300
                assert dict(edge.matched) == {"all": 100}
            assert len(lines) == 100
            resumed = {**ALL, "criteria": criteria, "since": {"progress": begin.progress}}
            async with served.connect(resumed) as client:
                assert of_kind(await captures(client, 102), "capture") == found

    async def test_a_rename_is_told_to_who_follows_the_name(self) -> None:
        """E12: behind it, the name means something else."""
        async with self.served() as served:
            await served.log.append([*singles(1, 1), committed(reshaped(2, "rename", to="old"))])
            asked = {**ALL, "criteria": data(entityType="orders")}
            async with served.connect(asked) as client:
                found = of_kind(await captures(client, 2), "capture")
            assert [one.operation for one in found] == ["insert", "rename"]

    async def test_a_request_ends_after_as_many_captures_as_it_asked_for(self) -> None:
        async with self.served() as served:
            await served.log.append(singles(1, 5))
            async with served.connect({**ALL, "completeAfter": 2}) as client:
                found = await until(client, "finished")
                assert sequences(found) == [1, 2]
                assert (found[-1].ids, found[-1].code) == (("all",), "")
                await nothing_more(served, client)

    # --- where it begins, and what is safe ------------------------------------------------------

    async def test_a_place_that_retention_removed_is_an_error_with_the_oldest(self) -> None:
        """E1: never an empty stream."""
        async with self.served() as served:
            for at in range(1, 30):
                await served.log.append(singles(at, at))
            place = await marker(served, 3)
            await served.log.trim(10)
            oldest = (await served.log.bounds()).trimmed
            for since in ({"version": 2}, {"progress": place}, {"transactionId": 2}):
                async with served.connect({**ALL, "since": since}) as client:
                    over = (await until(client, "refused"))[-1]
                    assert over.code == "TRIMMED"
                    assert over.message
                    assert Heard(kind="refused", progress=over.oldest).sequence == oldest
                async with served.connect({**ALL, "since": {"progress": over.oldest}}) as client:
                    found = sequences(await captures(client, 29 - oldest))
                    assert found == list(range(oldest + 1, 30))

    async def test_who_is_overtaken_by_retention_is_told_so(self) -> None:
        """E1, E13: after an unbroken run, and with the oldest marker; nobody waits for it."""
        async with self.served() as served:
            await append_large(served.log, 800)
            asked = {**ALL, "content": "body"}
            async with served.connect(asked) as client:
                found = await captures(client, 1)
                await append_large(served.log, 100, start=800)
                await served.log.trim(880)
                found += await until(client, "finished")
            assert (found[-1].code, found[-1].ids) == ("TRIMMED", ("all",))
            assert Heard(kind="finished", progress=found[-1].oldest).sequence >= 800
            seen = sequences(found)
            assert seen == list(range(1, len(seen) + 1))
            assert len(seen) < 800

    async def test_what_is_safe_is_never_ahead_of_what_was_sent(self) -> None:
        """E2, E3: a client that pauses and saves what it is told loses nothing."""
        async with self.served() as served:
            await append_large(served.log, 400)
            asked = {**ALL, "content": "body"}
            async with served.connect(asked) as client:
                await until(client, "confirmed")
                got, said = 0, 0
                while got < 400 or said < 400:
                    one = await client.next()
                    if one.kind == "capture":
                        assert one.sequence == got + 1
                        got = one.sequence
                    elif one.kind == "maintenance":
                        assert said <= one.sequence <= got
                        assert one.positions == {"all": one.progress}
                        said = one.sequence
                    if got == 100 and one.kind == "capture":  # and now nothing is read for a while
                        async with served.connect(asked) as other:
                            assert len(sequences(await captures(other, 400))) == 400

    async def test_a_filter_that_matches_nothing_moves_what_is_safe(self) -> None:
        """E3, E5."""
        async with self.served() as served:
            asked = {"id": "none", "criteria": data(entityType="none")}
            async with served.connect(asked) as client:
                await until(client, "confirmed")
                await served.log.append(singles(1, 20))
                found = await safe_at(client, 20)
                assert of_kind(found, "capture") == []

    async def test_a_marker_ahead_is_refused_and_a_version_ahead_is_waited_for(self) -> None:
        """E8: and the confirmation says so."""
        async with self.served() as served:
            await served.log.append(singles(1, 5))
            bounds = await served.log.bounds()
            ahead = str(Progress(bounds.log_id, 1_000, 0))
            async with served.connect({**ALL, "since": {"progress": ahead}}) as client:
                assert (await until(client, "refused"))[-1].code == "AHEAD"
            since = {"version": 8, "index": 1}
            async with served.connect({**ALL, "since": since}) as client:
                said = (await until(client, "confirmed"))[-1]
                assert said.waiting
                await served.log.append(singles(6, 9))
                assert sequences(await captures(client, 2)) == [8, 9]

    async def test_what_cannot_be_meant_is_refused_by_name(self) -> None:
        """E8: both a version and a transaction id."""
        async with self.served() as served:
            for asked, name in (
                ({"id": "a", "since": {"version": 1, "transactionId": 2}}, "since"),
                ({"id": "a", "criteria": [{"area": "nonsense"}]}, "criteria[0].area"),
                ({"id": "a", "completeAfter": -1}, "completeAfter"),
                ({"id": "a", "since": "no marker"}, "no marker"),
            ):
                async with served.connect(asked) as client:
                    over = (await until(client, "refused"))[-1]
                assert over.code in {"request", "MALFORMED"}
                assert name in over.message

    async def test_a_gap_is_told_to_who_asked_and_ends_any_other(self) -> None:
        async with self.served() as served:
            await served.log.append([*singles(1, 1), committed(told(2, "gap")), *singles(3, 3)])
            async with served.connect(ALL) as client:
                found = await until(client, "finished")
                assert sequences(found) == [1]
                assert found[-1].code == "GAP"
                assert Heard(kind="finished", progress=found[-1].oldest).sequence == 2
            informed = {**ALL, "criteria": [{"area": "system"}, *data()]}
            async with served.connect(informed) as client:
                found = of_kind(await captures(client, 3), "capture")
            assert [one.operation for one in found] == ["insert", "gap", "insert"]
