"""What every server of capture subscriptions promises of several requests, and of how they end."""

import asyncio
import contextlib
import random

import pytest

from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts.captures_base import (
    ALL,
    CaptureServerBase,
    append_large,
    captures,
    data,
    of_kind,
    safe_at,
    sequences,
    until,
)
from penstock.testing.contracts.capturing import (
    StreamEndedError,
    changed,
    committed,
    opened_log,
    singles,
    told,
)


class SeveralRequestsContract(CaptureServerBase):
    """A part of `CaptureServerContract`."""

    # --- several requests -----------------------------------------------------------------------

    async def test_an_event_that_matches_two_requests_comes_once_with_both_ids(self) -> None:
        """E7."""
        if not self.has_many:
            pytest.skip("one request a subscription")
        async with self.served() as served:
            await served.log.append(singles(1, 1))
            every = {"id": "all", "criteria": data()}
            orders = {"id": "orders", "criteria": data(entityType="orders")}
            async with served.connect(every, orders) as client:
                found = [await client.next(), await client.next()]
                assert {one.kind for one in found} == {"confirmed"}
                await until(client, "maintenance")
                await served.log.append([committed(changed(2, collection="lines")), *singles(3, 3)])
                found = await captures(client, 2)
                assert [(sorted(one.ids), one.sequence) for one in found] == [
                    (["all"], 2),
                    (["all", "orders"], 3),
                ]

    async def test_requests_come_and_go_while_others_run(self) -> None:
        """E7: extend with an own start, limit, cancel all."""
        if not self.can_change:
            pytest.skip("one direction")
        async with self.served() as served:
            log = served.log
            await log.append(singles(1, 3))
            async with served.connect({"id": "live", "criteria": data()}) as client:
                await until(client, "confirmed")
                await client.extend({**ALL, "id": "past"})
                found = await captures(client, 3)
                assert [one.ids for one in of_kind(found, "confirmed")] == [("past",)]
                assert sequences(found) == [1, 2, 3]
                assert all(one.ids == ("past",) for one in found)
                await safe_at(client, 3)
                await log.append(singles(4, 4))
                (both,) = await captures(client, 1)
                assert (sorted(both.ids), both.sequence) == (["live", "past"], 4)
                await client.limit("past")
                assert sequences(await until(client, "finished", ids=("past",))) == []
                await log.append(singles(5, 5))
                (alone,) = await captures(client, 1)
                assert (alone.ids, alone.sequence) == (("live",), 5)
                await client.cancel_all()
                await until(client, "finished", ids=("live",))
                await log.append(singles(6, 6))
                await client.extend({"id": "next", "since": {"version": 7}, "criteria": data()})
                await until(client, "confirmed")
                await log.append(singles(7, 7))
                (after,) = await captures(client, 1)
                assert (after.ids, after.sequence) == (("next",), 7)

    async def test_a_request_that_is_changed_goes_on_from_its_place(self) -> None:
        if not self.can_change:
            pytest.skip("one direction")
        async with self.served() as served:
            log = served.log
            await log.append([*singles(1, 2), committed(changed(3, collection="lines"))])
            asked = {"id": "a", "since": "beginning", "criteria": data(entityType="orders")}
            async with served.connect(asked) as client:
                assert sequences(await safe_at(client, 3)) == [1, 2]
                await client.change({"id": "a", "criteria": data(entityType="lines")})
                said = (await until(client, "confirmed"))[-1]
                assert said.sequence == 3
                await log.append([*singles(4, 4), committed(changed(5, collection="lines"))])
                assert sequences(await captures(client, 1)) == [5]

    async def test_what_is_refused_changes_nothing(self) -> None:
        if not self.can_change:
            pytest.skip("one direction")
        async with (
            self.served(requests_max=2) as served,
            served.connect({"id": "a", "criteria": data()}) as client,
        ):
            await until(client, "confirmed")
            await client.extend({"id": "a"})
            await client.extend({"id": "b", "criteria": [{"area": "nonsense"}]})
            await client.limit("nobody")
            await client.change({"id": "nobody"})
            refused = [(await until(client, "refused"))[-1] for _ in range(4)]
            assert {one.code for one in refused} == {"request"}
            assert all(one.message for one in refused)
            assert refused[0].ids == ("a",)
            await client.extend({"id": "b", "criteria": data()}, {"id": "c"})
            over = (await until(client, "refused"))[-1]
            assert "at most 2 requests" in over.message
            await served.log.append(singles(1, 1))
            (found,) = of_kind(await captures(client, 1), "capture")
            assert sorted(found.ids) == ["a", "b"]

    async def test_credit_is_what_may_be_sent_and_not_one_more(self) -> None:
        """More than anybody can use is as much as can be said."""
        if not self.has_credits:
            pytest.skip("no credits")
        async with self.served() as served:
            await served.log.append(singles(1, 5))
            async with served.connect(ALL, credit=2) as client:
                found = await captures(client, 2)
                for _ in range(3):
                    found += await until(client, "maintenance")
                assert sequences(found) == [1, 2]
                assert of_kind(found, "maintenance")[-1].sequence == 2
                await client.request(1)
                assert sequences(await captures(client, 1)) == [3]
                await client.request((1 << 31) - 1)
                await client.request((1 << 31) - 1)
                assert sequences(await captures(client, 2)) == [4, 5]

    # --- how it ends ----------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_request_has_one_end_and_nothing_behind_it(self, seed: int) -> None:
        """E14: removal, its own count and a gap race, and each request is ended once."""
        if not self.can_change:
            pytest.skip("one direction")
        draw = random.Random(seed)
        async with self.served(requests_max=100) as served, served.connect() as client:
            names = [f"r{n}" for n in range(40)]
            await client.extend(
                *(
                    {"id": name, "completeAfter": draw.randint(0, 4), "criteria": data()}
                    for name in names
                )
            )
            confirmed = set[str]()
            while confirmed < set(names):  # else the gap may be before the last ones begin
                one = await client.next()
                confirmed |= set(one.ids) if one.kind == "confirmed" else set()

            async def write() -> None:
                for at in range(1, 7):
                    await served.log.append(singles(at, at))
                await served.log.append([committed(told(7, "gap"))])

            async def remove() -> None:
                for name in draw.sample(names, 30):
                    await client.limit(name)
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                group.create_task(remove())
                ended: list[str] = []
                while len(ended) < len(names):
                    one = await client.next()
                    assert not set(one.ids) & set(ended) or one.kind == "refused"
                    if one.kind == "finished":
                        ended += one.ids
            await client.cancel_all()
            await served.log.append(singles(8, 9))
            await client.extend({"id": "last", "since": {"version": 9}, "criteria": data()})
            found = await captures(client, 1)
            assert of_kind(found, "finished") == []
            assert all(one.ids == ("last",) for one in found if one.kind != "refused")

    async def test_who_goes_away_leaves_nothing_behind(self) -> None:
        """E7: also without a word."""
        async with self.served() as served:
            for vanishes in (False, True):
                async with served.connect(ALL) as client:
                    await until(client, "confirmed")
                    assert served.service.subscriptions == 1
                    if vanishes:
                        await client.abort()
                while served.service.subscriptions:
                    await served.log.append(singles(1, 1))
                    await asyncio.sleep(0.01)

    async def test_a_slow_client_delays_nobody(self) -> None:
        """E13, invariant 8: it gets everything later, and the others now."""
        async with self.served() as served:
            asked = {**ALL, "content": "body"}
            async with served.connect(asked) as slow, served.connect(asked) as quick:
                await until(slow, "confirmed")
                await append_large(served.log, 800)
                assert sequences(await captures(quick, 800)) == list(range(1, 801))
                assert sequences(await captures(slow, 800)) == list(range(1, 801))

    async def test_a_service_that_stops_says_so(self) -> None:
        config = CapturesConfig.model_validate({})
        async with opened_log() as log:
            service = CaptureService(log, lambda: config)
            async with self.serving(service) as endpoint, contextlib.AsyncExitStack() as stack:
                async with service.running():
                    client = await stack.enter_async_context(endpoint.connect(ALL))
                    await until(client, "confirmed")
                with pytest.raises(StreamEndedError) as ended:
                    await until(client, "nothing")
                assert ended.value.code == "service.unavailable"

    async def test_one_subscription_too_many_is_refused(self) -> None:
        async with (
            self.served(subscriptions_max=1) as served,
            served.connect(ALL) as client,
        ):
            await until(client, "confirmed")
            with pytest.raises(StreamEndedError) as ended:
                async with served.connect(ALL) as other:
                    await until(other, "confirmed")
            assert ended.value.code == "service.busy"
            await served.log.append(singles(1, 1))
            assert sequences(await captures(client, 1)) == [1]
