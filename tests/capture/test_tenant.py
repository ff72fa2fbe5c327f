"""Every event has a tenant, told from the event alone (P24)."""

from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from penstock.capture.tenant import TenantRule, TenantUnknownError, control_tenant


def rule(**options: Any) -> TenantRule:
    return TenantRule.model_validate(options)


@pytest.mark.parametrize(
    ("options", "key", "tenant"),
    [
        ({"id_prefix": ":"}, "acme:42", "acme"),
        ({"id_prefix": ":"}, "acme:42:7", "acme"),
        ({"id_prefix": "--"}, "a-b--c", "a-b"),
        ({"id_field": "tenant"}, {"tenant": "acme", "n": 1}, "acme"),
        ({"id_field": "org.id"}, {"org": {"id": 7}}, "7"),
        ({"id_field": "u"}, {"u": UUID(int=1)}, "00000000-0000-0000-0000-000000000001"),
        ({"id_prefix": ":", "otherwise": "shared"}, 42, "shared"),
        ({"id_prefix": ":", "otherwise": "shared"}, ":42", "shared"),
        ({"id_field": "t", "otherwise": "shared"}, {"t": ""}, "shared"),
    ],
)
def test_a_key_tells_the_tenant_of_a_delete_too(
    options: dict[str, Any], key: object, tenant: str
) -> None:
    assert rule(**options).of(key) == tenant


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"id_prefix": ":"}, "acme"),
        ({"id_prefix": ":"}, ":42"),
        ({"id_prefix": ":"}, 42),
        ({"id_field": "t"}, {"t": None}),
        ({"id_field": "t"}, {"t": True}),
        ({"id_field": "t"}, {"t": [1]}),
        ({"id_field": "t"}, {}),
        ({"id_field": "t"}, "text"),
        ({"id_field": "t"}, {"t": object()}),
    ],
)
def test_a_key_that_names_no_tenant_is_an_error_not_an_empty_one(
    options: dict[str, Any], key: object
) -> None:
    with pytest.raises(TenantUnknownError, match="otherwise"):
        rule(**options).of(key)


def test_a_field_is_read_from_the_newest_state_that_the_event_holds() -> None:
    tenants = rule(field="org.id")
    after, before = {"org": {"id": "new"}}, {"org": {"id": "old"}}
    assert tenants.of(1, after=after, before=before) == "new"
    assert tenants.of(1, before=before) == "old"
    assert tenants.of(1, updated={"org.id": "set"}, before=before) == "set"
    assert tenants.of(1, updated={"other": 1}, before=before) == "old"
    assert tenants.of(1, updated={"org": {"id": "set"}}, before=before) == "set"
    assert tenants.of(1, updated={"org.name": "n"}, removed=["other"], before=before) == "old"


@pytest.mark.parametrize(
    "change",
    [
        {"removed": ["org.id"]},
        {"removed": ["org"]},
        {"updated": {"org": {"name": "n"}}},
        {"updated": {"org": "text"}},
    ],
)
def test_a_field_that_an_update_took_away_names_no_tenant(change: dict[str, Any]) -> None:
    """The readers of the tenant of before have no business with what the document is now."""
    before = {"org": {"id": "old"}}
    assert rule(field="org.id", otherwise="shared").of(1, **change, before=before) == "shared"
    with pytest.raises(TenantUnknownError):
        rule(field="org.id").of(1, **change, before=before)


def test_a_delete_without_its_document_has_no_default_tenant() -> None:
    """P24: `otherwise` is for documents that name no tenant, not for documents that are not here.

    Else a reader of tenant acme would never see the delete of acme's document.
    """
    with pytest.raises(TenantUnknownError, match="before images"):
        rule(field="org", otherwise="shared").of(1)
    assert rule(field="org", otherwise="shared").of(1, before={"n": 1}) == "shared"


def test_a_document_that_names_another_tenant_leaves_the_one_that_it_named() -> None:
    by_field = rule(field="org.id")
    assert by_field.left("new", {"org": {"id": "old"}}) == "old"
    assert by_field.left("same", {"org": {"id": "same"}}) is None
    assert by_field.left("7", {"org": {"id": 7}}) is None
    assert by_field.left("new", None) is None, "what it was is not known"
    assert by_field.left("new", {"n": 1}) is None, "it was nobody's"
    assert rule(field="org.id", otherwise="shared").left("new", {"n": 1}) == "shared"
    assert rule(id_prefix=":").left("new", {"_id": "old:1"}) is None, "a key stays what it is"


def test_an_update_may_give_another_tenant_where_it_touches_the_field() -> None:
    by_field = rule(field="org.id")
    for path in ("org", "org.id", "org.id.x"):
        assert by_field.may_leave([path])
    for path in ("org.name", "organisation", "n", "org.idx"):
        assert not by_field.may_leave([path])
    assert by_field.may_leave(None), "a whole document came in its place"
    assert not by_field.may_leave([])
    assert not rule(id_prefix=":").may_leave(None)
    by_field.refuse_move(["n"], "no image")
    with pytest.raises(TenantUnknownError, match="does not say which it had: no image"):
        by_field.refuse_move(["org"], "no image")


def test_a_source_writes_its_own_types() -> None:
    assert rule(field="t").of(1, after={"t": 1.5}, text=lambda value: f"<{value}>") == "<1.5>"


def test_what_is_about_no_document_has_a_tenant_too() -> None:
    assert control_tenant("acme", database="shop", source="s") == "acme"
    assert control_tenant(None, database="shop", source="s") == "shop"
    assert control_tenant(rule(id_prefix=":"), database="shop", source="s") == "shop"
    assert control_tenant(None, database="", source="s") == "s"


@pytest.mark.parametrize(
    "options", [{}, {"otherwise": "x"}, {"field": "a", "id_field": "b"}, {"id_prefix": ""}]
)
def test_a_rule_is_exactly_one_way(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rule(**options)
