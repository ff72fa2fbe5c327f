"""What every server of capture subscriptions promises of envelopes, for existing consumers."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.event import Operation
from penstock.subscribe.captures.envelopes import ENVELOPES
from penstock.subscribe.scope import Grant, Scope
from penstock.testing.contracts.captures_base import (
    ALL,
    CaptureServerBase,
    Serving,
    captures,
    data,
    of_kind,
    until,
)
from penstock.testing.contracts.capturing import StreamEndedError, changed, committed

_EVERY: dict[str, Any] = {
    **ALL,
    "criteria": [*data(), {"area": "infrastructure"}],
    "content": "body",
    "beforeImages": True,
}
_HIDDEN = Scope((Grant(hidden=frozenset({"secret"})),), b"secret")


class EnvelopesContract(CaptureServerBase):
    """A part of `CaptureServerContract`."""

    async def test_a_consumer_of_debezium_reads_what_it_is_used_to(self) -> None:
        self._require_envelopes()
        for hidden in (False, True):
            begin, insert, update, delete, end = await self._told("debezium", hidden=hidden)
            assert begin["status"] == "BEGIN"
            assert (end["status"], end["event_count"]) == ("END", 3)
            assert begin["id"] == end["id"] == insert["transaction"]["id"]
            for event, op in ((insert, "c"), (update, "u"), (delete, "d")):
                assert event["op"] == op
                assert {"before", "after", "source", "op", "ts_ms", "transaction"} <= set(event)
                source = event["source"]
                assert (source["name"], source["db"], source["table"]) == ("shop", "db", "orders")
                assert {"version", "connector", "ts_ms", "snapshot"} <= set(source)
                assert isinstance(event["ts_ms"], int)
                assert event["requestIds"] == ["all"]
            row = {"_id": 1} if hidden else {"_id": 1, "secret": "s3cr3t"}
            assert insert["after"] == row
            assert (insert["before"], delete["after"]) == (None, None)
            # Images before need their verb.
            assert update["before"] == (None if hidden else row)

    async def test_a_consumer_of_the_mongodb_connector_gets_documents_as_text(self) -> None:
        self._require_envelopes()
        _, insert, *_ = await self._told("debezium-mongodb", hidden=False)
        assert isinstance(insert["after"], str)
        assert insert["source"]["collection"] == "orders"

    async def test_a_consumer_of_cloudevents_gets_what_the_specification_demands(self) -> None:
        """CloudEvents 1.0.2: required attributes, names in lower case, and values that are text."""
        self._require_envelopes()
        for hidden in (False, True):
            events = await self._told("cloudevents", hidden=hidden)
            for event in events:
                assert event["specversion"] == "1.0"
                assert all(event[name] for name in ("id", "source", "type"))
                assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", event["time"])
                assert event["requestids"] == "all"
                for name in set(event) - {"data"}:
                    assert re.fullmatch("[a-z0-9]{1,20}", name)
                    assert isinstance(event[name], str)
            assert [one["type"] for one in events] == [
                "penstock.infrastructure.begin",
                *(f"penstock.data.{one}" for one in ("insert", "update", "delete")),
                "penstock.infrastructure.commit",
            ]
            assert len({(one["source"], one["id"]) for one in events}) == 5
            assert ("secret" in events[1]["data"]["fullDocument"]) == (not hidden)

    async def test_our_own_envelope_can_be_asked_for_by_name(self) -> None:
        self._require_envelopes()
        begin, insert, *_ = await self._told("penstock", hidden=False)
        assert (begin["operation"], insert["operation"]) == ("begin", "insert")
        assert insert["body"]["fullDocument"]["_id"] == 1

    async def test_an_unknown_envelope_is_refused_by_name(self) -> None:
        self._require_envelopes()
        async with self.served() as served, served.connect(ALL, envelope="avro") as client:
            try:
                over = (await until(client, "refused"))[-1]
            except StreamEndedError as ended:
                assert ended.code == "request"
                return
            assert over.code == "request"
            assert "avro" in over.message
            assert all(name in over.message for name in ENVELOPES)

    def _require_envelopes(self) -> None:
        if not self.has_envelopes:
            pytest.skip("typed")

    async def _told(self, envelope: str, *, hidden: bool) -> list[Mapping[str, Any]]:
        """What a transaction of an insert, an update and a delete is in an envelope."""
        if hidden:
            self.scope = _HIDDEN
        row = {"_id": 1, "secret": "s3cr3t"}
        async with self.served() as served:
            await served.log.append(
                [
                    committed(
                        changed(1, key=1, document=row),
                        changed(
                            1,
                            key=1,
                            ordinal=1,
                            operation=Operation.UPDATE,
                            document=row,
                            before=row,
                        ),
                        changed(1, key=1, ordinal=2, operation=Operation.DELETE),
                    )
                ]
            )
            found = await self._heard(served, envelope)
        assert ("s3cr3t" in str(found)) == (not hidden)
        return found

    async def _heard(self, served: Serving, envelope: str) -> list[Mapping[str, Any]]:
        async with served.connect(_EVERY, envelope=envelope) as client:
            return [one.said for one in of_kind(await captures(client, 5), "capture")]
