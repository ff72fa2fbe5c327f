"""Which shards may be read, and from where, decided purely."""

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.trigger.lineage import Place, Shard, begin, from_horizon, go_on, has_ended
from penstock.trigger.windows import Window

HORIZON, LATEST = Place("TRIM_HORIZON"), Place("LATEST")
A = Shard("a", "gone", "1", is_closed=True)
B = Shard("b", "a", "10", is_closed=True)
C = Shard("c", "b", "20", is_closed=False)
D = Shard("d", "b", "30", is_closed=False)


def after(number: str, *, done: bool = False, children: tuple[str, ...] = ()) -> Place:
    return Place("AFTER_SEQUENCE_NUMBER", number, done, children=children)


def test_a_trigger_begins_with_the_oldest_shards() -> None:
    assert begin([A, B, C, D], HORIZON).places == {"a": HORIZON}
    at = Place("AT_TIMESTAMP", "5")
    assert begin([B, C, D], at).places == {"b": at}
    assert begin([], HORIZON).places == {}


def test_latest_begins_with_the_open_shards_and_later_their_children() -> None:
    places = begin([A, B, C], LATEST).places
    done = Place("LATEST", done=True)
    assert places == {"a": done, "b": done, "c": LATEST}
    assert go_on([A, B, C, D], places).places["d"] == Place("AT_SEQUENCE_NUMBER", "30")


def test_children_wait_for_their_parent_and_begin_at_their_start() -> None:
    plan = go_on([A, B, C, D], {"a": after("5")})
    assert (plan.ready(), plan.missing) == (["a"], ())
    plan = go_on([A, B, C, D], {"a": after("5", done=True)})
    assert plan.places["b"] == Place("AT_SEQUENCE_NUMBER", "10")
    assert plan.ready() == ["b"]
    plan = go_on([B, C, D], {"b": after("19", done=True)})
    assert plan.ready() == ["c", "d"]


def test_a_child_of_which_nothing_was_read_before_begins_as_its_parent_did() -> None:
    """Else a horizon within the child would be told as a loss."""
    for start in (HORIZON, Place("AT_TIMESTAMP", "5")):
        done = Place(start.kind, start.value, done=True)
        assert go_on([A, B], {"a": done}).places["b"] == start


def test_what_came_and_went_unseen_is_missing() -> None:
    """After a long pause, with shards that nobody saw: never a silence."""
    assert go_on([C, D], {"b": after("12")}).missing == ("b",)
    assert go_on([C, D], {"b": after("12")}, running=["b"]).missing == ()
    assert go_on([B, C, D], {"gone": after("1", done=True)}).missing == ("a",)
    assert go_on([A, B], {"gone": after("1", done=True)}).missing == ()


def test_a_stream_of_which_nothing_was_read_is_read_from_its_first_number() -> None:
    """Not from what is left of it."""
    first = Shard("a", None, "1", is_closed=True)
    assert go_on([first, B, C], {}) == ({"a": Place("AT_SEQUENCE_NUMBER", "1")}, ())
    assert go_on([B, C, D], {}) == ({}, ("a",))
    assert go_on([], {}) == ({}, ())


def test_going_on_from_the_horizon_forgets_what_is_missing() -> None:
    plan = from_horizon([C, D], go_on([C, D], {"b": after("12")}))
    assert (plan.places, plan.missing) == ({"c": HORIZON, "d": HORIZON}, ())


def test_a_drained_shard_is_remembered_until_its_child_is_known() -> None:
    done = after("19", done=True)
    assert go_on([], {"b": done}).places == {"b": done}
    assert set(go_on([C], {"b": done}).places) == {"c"}


def test_a_drained_shard_is_forgotten_though_its_child_does_not_name_it_any_more() -> None:
    done = after("19", done=True, children=("c",))
    orphan = C._replace(parent=None)
    assert go_on([orphan], {"b": done, "c": after("21")}).places == {"c": after("21")}


def test_another_child_than_followed_when_the_end_was_read_is_another_historys() -> None:
    """So what was read of the parent may not be what the parent has by now."""
    done = after("19", done=True, children=("c",))
    assert go_on([B, C], {"b": done}).missing == ()
    assert go_on([B, C, D], {"b": done}).missing == ()
    assert go_on([B, D], {"b": done}).missing == ("c",)
    assert go_on([B, D], {"b": done, "c": after("21", done=True)}).missing == ("c",)
    assert go_on([B, D], {"b": done, "c": after("21")}).missing == ("c",)


def test_going_on_from_the_horizon_reads_a_parent_again_that_ended_in_another_history() -> None:
    done = after("19", done=True, children=("c",))
    for places in (
        {"b": done},
        {"b": done, "c": after("21")},
        {"b": done, "c": after("21", done=True)},
        {"b": done, "c": after("29", done=True, children=("e",)), "e": after("41")},
        {"b": done, "c": after("29", done=True, children=("e",)), "e": after("41", done=True)},
    ):
        plan = from_horizon([B, D], go_on([B, D], places))
        assert (plan.places, plan.missing) == ({"b": HORIZON}, ())
        assert go_on([B, D], plan.places) == plan


def test_nothing_follows_a_shard_that_ended_in_another_history_before_its_readers_are_done() -> (
    None
):
    """A reader whose shard is gone puts its place a last time, and it may have a window to end."""
    done = after("19", done=True, children=("c",))
    between = after("29", done=True, children=("e",))
    window = Place("AFTER_SEQUENCE_NUMBER", "41", window=Window(start=0, seconds=10))
    for places, running in (
        ({"b": done, "c": after("21")}, ["c"]),
        ({"b": done, "c": between, "e": after("41")}, ["e"]),
        ({"b": done, "c": between, "e": window}, ["e"]),
    ):
        assert go_on([B, D], places, running=running) == (places, ())
    places = {"b": done, "c": between, "e": window}
    assert from_horizon([B, D], go_on([B, D], places)) == (places, ())


def test_going_on_from_the_horizon_forgets_a_parent_whose_child_was_lost_with_it() -> None:
    """The child was known, and retention took both before it was begun."""
    done = after("19", done=True, children=("c",))
    listed = [Shard("d", "c", "30", is_closed=False)]
    plan = go_on(listed, {"b": done})
    assert plan.missing == ("c",)
    plan = from_horizon(listed, plan)
    assert (plan.places, plan.missing) == ({"d": HORIZON}, ())
    assert go_on(listed, plan.places) == plan


def test_a_stream_has_ended_when_all_that_is_listed_is_done() -> None:
    done = after("1", done=True)
    assert has_ended([A, B], {"a": done, "b": done})
    assert not has_ended([A, B], {"a": done})
    assert not has_ended([A], {"a": after("1")})


@given(st.integers(0, 1 << 32))
def test_every_shard_is_read_whole_once_whatever_is_forgotten_when(seed: int) -> None:
    """A tree of shards grows and is forgotten while it is read, never before it was read."""
    chance = random.Random(seed)
    shards = [Shard("s000", None, "0", is_closed=False)]
    places = begin(shards, HORIZON).places
    begun, done = list[str](), list[str]()
    for step in range(1, 40):
        choice = chance.randrange(3)
        if choice == 0:
            open_ones = [one for one in shards if not one.is_closed]
            if open_ones:
                parent = chance.choice(open_ones)
                shards[shards.index(parent)] = parent._replace(is_closed=True)
                for side in range(chance.randint(1, 2)):
                    name = f"s{step:02}{side}"
                    shards.append(Shard(name, parent.id, f"{step}{side}", is_closed=False))
        elif choice == 1:
            closed = {one.id for one in shards if one.is_closed}
            ready = [one for one, place in places.items() if not place.done and one in closed]
            if ready:
                one = chance.choice(ready)
                children = tuple(shard.id for shard in shards if shard.parent == one)
                places = {**places, one: after("x", done=True, children=children)}
                done.append(one)
        else:
            # Retention forgets what was read, once its parent is forgotten too.
            listed = {one.id for one in shards}
            old = [one for one in shards if one.id in done and one.parent not in listed]
            if old and len(shards) > 1:
                shards.remove(old[0])
        plan = go_on(shards, places)
        assert plan.missing == ()
        for name in plan.places:
            if name not in begun and not plan.places[name].done:
                begun.append(name)
        parents = {one.id: one.parent for one in shards}
        for name in plan.ready():
            parent_of = parents.get(name)
            assert parent_of is None or parent_of in done, "a child before its parent"
        places = plan.places
    assert len(begun) == len(set(begun))
    assert set(done) <= set(begun) | {"s000"}
