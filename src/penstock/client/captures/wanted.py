"""What is asked for, said in Python: `where.data("orders").keys(5).operations("update").body()`.

Every step gives a new value, so that a beginning can be shared. `a | b` is either.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Self

import msgspec
from msgspec import Struct, structs

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.errors import RequestError


class Criterion(Struct, frozen=True, kw_only=True):
    """One alternative: all that it names must hold. An empty choice is anything."""

    area: pb.CaptureArea = pb.AREA_ANY
    catalogs: tuple[str, ...] = ()
    entity_types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """As JSON."""
    operations: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    containers: tuple[pb.CaptureContainer, ...] = ()


class Wanted(Struct, frozen=True, kw_only=True):
    """A request. What narrows it narrows all of its alternatives."""

    criteria: tuple[Criterion, ...]
    id: str = ""
    content: pb.CaptureContent = pb.CONTENT_HEADER
    before_images: bool = False
    start: bytes = b""
    """A `CaptureSince`; empty: now."""
    count: int = 0

    def __or__(self, other: "Wanted") -> Self:
        """Either of them; all else is as in the first."""
        return structs.replace(self, criteria=(*self.criteria, *other.criteria))

    def catalogs(self, *names: str) -> Self:
        """Only of these: "source.database", or "source" for all its databases."""
        return self._narrowed(catalogs=names)

    def keys(self, *keys: Any) -> Self:
        """Only of these primary keys: values, or objects with the fields of a key."""
        texts = tuple(msgspec.json.encode(key).decode() for key in keys)
        return self._narrowed(keys=texts)

    def operations(self, *names: str) -> Self:
        """Only these: insert, update, replace, delete; upsert or remove; of a schema, its word."""
        return self._narrowed(operations=names)

    def fields(self, *names: str) -> Self:
        """Only changes that touch one of these fields, or any field if none is named."""
        return self._narrowed(containers=(pb.CONTAINER_ATTRIBUTE,), fields=names)

    def body(self, *, before_images: bool = False) -> Self:
        """With what there is now; `before_images`: and with what was, where it is kept."""
        return structs.replace(self, content=pb.CONTENT_BODY, before_images=before_images)

    def named(self, name: str) -> Self:
        """Under this id; without, it gets one."""
        return structs.replace(self, id=name)

    def complete_after(self, count: int) -> Self:
        """Ends by itself after so many captures, edges of transactions among them."""
        return structs.replace(self, count=count)

    def since(
        self,
        *,
        version: int | None = None,
        index: int = 0,
        commit: int | None = None,
        transaction: str | None = None,
        progress: str | None = None,
        timestamp: datetime | int | None = None,
    ) -> Self:
        """From one of these on: `version` and `index`, or `timestamp` (Unix milliseconds, or a
        datetime with its zone), inclusive; behind a `commit`, the source's `transaction`, or
        `progress`. Raises RequestError for several of them, or none."""
        given = {
            "version": None if version is None else pb.CaptureVersion(version=version, index=index),
            "commit": commit,
            "transaction": transaction,
            "progress": progress,
            "timestamp": _milliseconds(timestamp),
        }
        said = {name: value for name, value in given.items() if value is not None}
        if len(said) != 1:
            raise RequestError("since takes exactly one place to begin at. Nothing was sent.")
        start = pb.CaptureSince(**said)  # type: ignore[arg-type]
        return structs.replace(self, start=start.SerializeToString())

    def since_beginning(self) -> Self:
        """From the oldest change that is kept."""
        return structs.replace(self, start=pb.CaptureSince(beginning=True).SerializeToString())

    def message(self) -> pb.CaptureRequest:
        """The request as it is sent."""
        request = pb.CaptureRequest(
            id=self.id,
            criteria=[_message(one) for one in self.criteria],
            content=self.content,
            before_images=self.before_images,
            complete_after=self.count,
        )
        if self.start:
            request.since.CopyFrom(pb.CaptureSince.FromString(self.start))
        return request

    def _narrowed(self, **changes: Iterable[Any]) -> Self:
        criteria = tuple(structs.replace(one, **changes) for one in self.criteria)
        return structs.replace(self, criteria=criteria)


class Where:
    """Where requests begin: `where`."""

    def anything(self) -> Wanted:
        """All there is."""
        return _of(pb.AREA_ANY)

    def data(self, *entity_types: str) -> Wanted:
        """Changes of documents of these collections or tables, or of all."""
        return _of(pb.AREA_DATA, entity_types)

    def schema(self, *entity_types: str) -> Wanted:
        """Changes of shape of these, or of all, and of their catalogs."""
        return _of(pb.AREA_SCHEMA, entity_types)

    def entity_schema(self, *entity_types: str) -> Wanted:
        """Changes of shape of these, or of all."""
        return _of(pb.AREA_ENTITY_SCHEMA, entity_types)

    def catalog_schema(self) -> Wanted:
        """Changes of shape of catalogs."""
        return _of(pb.AREA_CATALOG_SCHEMA)

    def system(self) -> Wanted:
        """What is said of sources: started, stopped, copied; gaps."""
        return _of(pb.AREA_SYSTEM)

    def infrastructure(self) -> Wanted:
        """The beginnings and ends of transactions."""
        return _of(pb.AREA_INFRASTRUCTURE)


where: Final = Where()


def _of(area: pb.CaptureArea, entity_types: tuple[str, ...] = ()) -> Wanted:
    return Wanted(criteria=(Criterion(area=area, entity_types=entity_types),))


def _message(one: Criterion) -> pb.CaptureCriterion:
    site = pb.CaptureSite(
        catalog=one.catalogs,
        entity_type=one.entity_types,
        entity_primary_key=one.keys,
        operation=one.operations,
        container_type=one.containers,
        fields=one.fields,
    )
    return pb.CaptureCriterion(area=one.area, site=site)


def _milliseconds(moment: datetime | int | None) -> int | None:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise RequestError("since needs a datetime with its zone. Nothing was sent.")
        return round(moment.timestamp() * 1000)
    return moment
