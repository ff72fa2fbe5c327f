"""Whose an event is: the rule that a source is given, applied to what one event says. Pure.

Every event has a tenant, and it is never empty (P24). It is told from the event alone, so that it
is the same on every capture. What cannot be told is an error, and so stops capture or becomes a
dead letter; it is never an empty text, nor quietly the tenant of somebody else.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self, cast
from uuid import UUID

from msgspec import structs
from pydantic import Field, model_validator

from penstock.config import Config
from penstock.event import ChangeEvent, Operation

Document = Mapping[str, Any]


class TenantUnknownError(ValueError):
    """An event does not say whose it is; the message says what was looked for."""


class TenantRule(Config):
    """Tells an event's tenant from its document or its key; exactly one way of the three."""

    field: str | None = Field(
        None,
        min_length=1,
        description="A field of the document, as a path: `account.id`. Needs before images, for a "
        "delete has no other document.",
    )
    id_prefix: str | None = Field(
        None,
        min_length=1,
        description="The separator after the tenant in a text key: ':' reads acme from acme:42.",
    )
    id_field: str | None = Field(
        None, min_length=1, description="A field of a key that is a document, as a path."
    )
    otherwise: str | None = Field(
        None,
        min_length=1,
        description="The tenant of documents or keys that do not name one. Without it they are "
        "undecodable.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = (self.field, self.id_prefix, self.id_field)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("name one of field, id_prefix and id_field")
        return self

    def of(
        self,
        key: object,
        *,
        after: Document | None = None,
        updated: Document | None = None,
        removed: Collection[str] = (),
        before: Document | None = None,
        text: Callable[[object], str | None] = lambda _: None,
    ) -> str:
        """The tenant of one event. `key` is the value of the document's id.

        A field is looked for in the document after the change; without one, in what the update
        set or removed, by paths; without that, in the document before. `text` writes a source's own
        types as text (None: it cannot); text and whole numbers need no help.

        Raises TenantUnknownError where none of them is here, or where what is here names no
        tenant and the rule has no `otherwise`. A missing document is never `otherwise`: it might
        well name a tenant.
        """
        if self.field is not None:
            value = self._in_documents(after, updated or {}, removed, before)
            where = f"the field {self.field} of its document"
        elif self.id_field is not None:
            value = _at(key, *self.id_field.split("."))
            where = f"the field {self.id_field} of its key"
        else:
            assert self.id_prefix is not None
            head, separator, _ = (
                key.partition(self.id_prefix) if isinstance(key, str) else ("", "", "")
            )
            value = head if separator else None
            where = f"its key's prefix before {self.id_prefix!r}"
        tenant = value if isinstance(value, str) else _written(value, text)
        if tenant:
            return tenant
        if self.otherwise is not None:
            return self.otherwise
        raise TenantUnknownError(
            f"its tenant cannot be told: {where} is no text or whole number. Set "
            f"tenant.otherwise for such documents"
        )

    @property
    def column(self) -> str | None:
        """The field of a document that the rule reads, without the path into it; None if it reads
        the key."""
        return None if self.field is None else self.field.partition(".")[0]

    def left(
        self,
        tenant: str,
        before: Document | None,
        *,
        text: Callable[[object], str | None] = lambda _: None,
    ) -> str | None:
        """The tenant that loses a document, which is `tenant`'s behind the change; None if none
        does.

        `before` is the document before the change, as far as the rule reads it; None: it is not
        known.
        """
        if self.field is None or before is None:
            return None  # another key is another document
        try:
            was = self.of(None, after=before, text=text)
        except TenantUnknownError:
            return None  # it was nobody's, so nobody was told of it
        return None if was == tenant else was

    def refuse_move(self, updated: Iterable[str] | None, why: str) -> None:
        """Refuse an update that may have given its document another tenant (as `may_leave`), where
        nothing says which one it had: `why`, and what to do. Raises TenantUnknownError."""
        if self.may_leave(updated):
            raise TenantUnknownError(
                f"it may give its document another tenant, and does not say which it had: {why}"
            )

    def may_leave(self, updated: Iterable[str] | None) -> bool:
        """Whether an update may have given its document another tenant: one of the paths
        `updated`, or of a document that it put in the other's place (None)."""
        if self.field is None or updated is None:
            return self.field is not None
        field = f"{self.field}."
        return any(field.startswith(f"{path}.") or f"{path}.".startswith(field) for path in updated)

    def _in_documents(
        self,
        after: Document | None,
        updated: Document,
        removed: Collection[str],
        before: Document | None,
    ) -> object:
        assert self.field is not None
        whole = self.field.split(".")
        if after is not None:
            return _at(after, *whole)
        for length in range(1, len(whole) + 1):
            path = ".".join(whole[:length])
            if path in updated:
                return _at(updated[path], *whole[length:])
            if path in removed:
                return None
        if before is not None:
            return _at(before, *whole)
        raise TenantUnknownError(
            f"its tenant cannot be told: the event holds no document with the field {self.field}. "
            f"Let the server store before images, or take the tenant from the key"
        )


Tenant = str | TenantRule | None
"""A constant, a rule, or None for the event's database."""


def of_two_tenants(
    event: ChangeEvent, *, left: str, new_id: str
) -> tuple[ChangeEvent, ChangeEvent]:
    """The two events of an update by which a document became another tenant's: its end for the
    tenant `left`, and its beginning, with the id `new_id`, which says nothing of before.

    Where the event has no document, its second half is the update as it was said.
    """
    ends = structs.replace(
        event,
        tenant=left,
        operation=Operation.DELETE,
        full_document=None,
        update_description=None,
        disambiguated_paths=None,
        unchanged=(),
        full_document_as_of_event=False,
    )
    begins = structs.replace(event, event_id=new_id, full_document_before_change=None)
    if event.full_document is not None:
        begins = structs.replace(
            begins,
            operation=Operation.INSERT,
            update_description=None,
            disambiguated_paths=None,
        )
    return ends, begins


def control_tenant(tenant: Tenant, *, database: str, source: str) -> str:
    """The tenant of an event about no document: the constant, else the database, else the source.

    An event of a whole source that reads many databases belongs to none of them.
    """
    return tenant if isinstance(tenant, str) else database or source


def _at(value: object, *path: str) -> object:
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Document", value).get(name)
    return value


def _written(value: object, text: Callable[[object], str | None]) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return str(int(value))
    return str(value) if isinstance(value, UUID) else text(value)
