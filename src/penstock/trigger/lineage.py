"""Which shards may be read, and from where: parents before children, and nothing passed. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from penstock.trigger.windows import Window

PlaceKind = Literal[
    "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"
]


class Place(Struct, frozen=True, omit_defaults=True):
    """Where a trigger stands in a shard, in the words of GetShardIterator."""

    kind: PlaceKind
    value: str = ""
    """A sequence number, or Unix seconds."""
    done: bool = False
    """The shard has ended, and all of it was handled."""
    window: Window | None = None
    """The window of time that is under way here, with its state."""
    children: tuple[str, ...] = ()
    """Of a shard that is done: those that followed it when its end was read. Their ids name the
    history behind which they begin, so that the end of a history that was lost is found out."""


class Shard(NamedTuple):
    """A shard as DescribeStream tells of it."""

    id: str
    parent: str | None
    first: str
    """Where its sequence numbers begin."""
    is_closed: bool


class Plan(NamedTuple):
    """What to do about a stream."""

    places: dict[str, Place]
    """Of every shard that is begun; to be made durable before any is read."""
    missing: tuple[str, ...]
    """Shards that were removed before they were handled."""

    def ready(self) -> list[str]:
        """Shards that may be read."""
        return [shard for shard, place in self.places.items() if not place.done]


def begin(shards: Sequence[Shard], start: Place) -> Plan:
    """The plan of a trigger that has no checkpoint yet.

    LATEST takes the shards that are open now, and later their children; else the oldest are begun,
    and their children once they are drained.
    """
    listed = {shard.id for shard in shards}
    places = dict[str, Place]()
    for shard in shards:
        if start.kind == "LATEST":
            places[shard.id] = Place("LATEST", done=shard.is_closed)
        elif shard.parent is None or shard.parent not in listed:
            places[shard.id] = start
    return Plan(places, ())


def go_on(
    shards: Sequence[Shard], places: Mapping[str, Place], *, running: Iterable[str] = ()
) -> Plan:
    """The plan of a trigger that stands at `places`; without any, before the stream's first record.

    A child is begun at its first sequence number, so that the service itself refuses it when
    retention was faster. Only where nothing of its parent was ever read does it begin as the parent
    did. Missing is an unfinished shard that is not listed (one that is `running` hears of it by
    itself), a child that was known and is neither, and one whose parent is neither listed nor
    known: the parent came and went unseen. So is all that follows a shard whose end another history
    has replaced, once its readers are done; until then nothing else that follows it is begun.

    `places` may not be newer than `shards`: a child that was known by then is listed, or gone.
    """
    listed, under_way = {shard.id for shard in shards}, set(running)
    planned = dict(places)
    missing = [
        shard
        for shard, place in places.items()
        if not place.done and shard not in listed and shard not in under_way
    ]
    # Retention takes parents before their children, so it never leaves a parent without any.
    replaced = {
        shard
        for shard, place in places.items()
        if place.children and shard in listed and listed.isdisjoint(place.children)
    }
    for name, place in places.items():
        if name not in replaced:
            missing += [one for one in place.children if one not in listed and one not in places]
            continue
        gone = _gone_after(name, places, listed)
        if not any(one in under_way or _has_window(places.get(one)) for one in gone):
            missing += gone
    for shard in shards:
        if shard.id in places:
            continue
        at_start = Place("AT_SEQUENCE_NUMBER", shard.first)
        if shard.parent is None:
            planned[shard.id] = at_start
        elif shard.parent in places:
            parent = places[shard.parent]
            if parent.done and shard.parent not in replaced:
                is_untouched = parent.kind in {"TRIM_HORIZON", "AT_TIMESTAMP"}
                planned[shard.id] = Place(parent.kind, parent.value) if is_untouched else at_start
        elif shard.parent not in listed:
            missing.append(shard.parent)
    # Forgotten is what is gone, once its child is known: else the child would have no parent.
    followed = {shard.parent for shard in shards if shard.id in planned}
    followed |= {
        shard
        for shard, place in planned.items()
        if place.children and planned.keys() >= set(place.children)
    }
    kept = {
        shard: place
        for shard, place in planned.items()
        if replaced or not place.done or shard in listed or shard not in followed
    }
    return Plan(kept, tuple(dict.fromkeys(missing)))


def _gone_after(shard: str, places: Mapping[str, Place], listed: Collection[str]) -> list[str]:
    """The shards that followed one, and those that followed them, as far as they are known and not
    listed."""
    gone, ahead = list[str](), [shard]
    while ahead:
        place = places.get(ahead.pop())
        if place is not None:
            children = [one for one in place.children if one not in listed]
            gone += children
            ahead += children
    return gone


def _has_window(place: Place | None) -> bool:
    return place is not None and place.window is not None


def from_horizon(shards: Sequence[Shard], plan: Plan) -> Plan:
    """The plan without what is missing: its children begin with the oldest record that is left.
    Where its parent is there still, that ended otherwise in another history, and begins so instead;
    a parent that is gone too is forgotten.

    A shard whose window is open stays, for its end is still to be told; its children wait for it.
    """
    ending = {shard for shard, place in plan.places.items() if _has_window(place)}
    lost = set(plan.missing) - ending
    listed = {shard.id for shard in shards}
    bereft = {shard for shard, place in plan.places.items() if not lost.isdisjoint(place.children)}
    again = bereft & listed
    forgotten = lost | (bereft - listed)
    places = {shard: place for shard, place in plan.places.items() if shard not in forgotten}
    for shard in shards:
        if shard.id in again or (shard.parent in lost and shard.id not in places):
            places[shard.id] = Place("TRIM_HORIZON")
        elif shard.parent in again:
            places.pop(shard.id, None)
    return Plan(places, ())


def has_ended(shards: Sequence[Shard], places: Mapping[str, Place]) -> bool:
    """Whether every shard that is listed was handled to its end."""
    return all(shard.id in places and places[shard.id].done for shard in shards)
