"""Rows as events: a column's own name may hold a dot, and never leads into another column."""

from typing import Any

import msgspec
import pytest

from penstock.audit.records import record_of
from penstock.capture.tenant import TenantRule, TenantUnknownError
from penstock.event import Operation
from penstock.sources.zero.events import Place, Row, Teller
from tests.audit.support import row

CELLS = {"id": b"1", "address.city": b'"K\xc3\xb6ln"', "7": b"1"}


def test_a_column_with_a_dot_in_its_name_is_no_path() -> None:
    """Beside one that its name would lead into, which was not sent."""
    place = Place(identity="i", watermark="w", millis=0, transaction="t")
    told = Teller("db", tenant=None).row(
        Operation.UPDATE, "public.people", ["id"], Row(CELLS, unchanged=("address",)), place
    )
    paths = bytes(told.disambiguated_paths or b"").decode()
    assert msgspec.json.decode(paths) == {"address.city": ["address.city"], "7": ["7"]}
    said: dict[str, Any] = {
        "operation_type": "update",
        "full_document": bytes(told.full_document or b"").decode(),
        "update_description": bytes(told.update_description or b"").decode(),
        "unchanged": list(told.unchanged),
    }
    record = record_of(row(1, **said, disambiguated_paths=paths), tz="UTC")
    assert record is not None
    assert record["paths"]["address.city"] == ["address.city"]


def test_a_tenant_is_not_that_of_a_column_that_reads_like_its_path() -> None:
    rule = TenantRule.model_validate({"field": "address.city", "otherwise": "nobody"})
    teller = Teller("db", tenant=rule)
    place = Place(identity="i", watermark="w", millis=0, transaction="t")
    sent = Row(CELLS | {"address": b'{"city":"Bonn"}'}, unchanged=("more",))
    assert teller.row(Operation.UPDATE, "public.people", ["id"], sent, place).tenant == "Bonn"
    not_sent = Row(CELLS, unchanged=("address",))
    with pytest.raises(TenantUnknownError):
        teller.row(Operation.UPDATE, "public.people", ["id"], not_sent, place)
