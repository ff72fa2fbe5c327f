"""A transaction is one commit, wherever the replies cut it (S10)."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from penstock.event import ChangeEvent, ClusterTime, Commit, Fragment, Operation
from penstock.sources.mongodb.assemble import FRAGMENT_BYTES, Assembler
from penstock.sources.mongodb.normalise import Change
from penstock.sources.mongodb.positions import Token

Transaction = tuple[int, int]
"""Its cluster time, and how many events it has; a single event is a plain write."""


def token(time: int, place: int = 0) -> Token:
    return Token(f"82{time:08X}{0:08X}{place:04X}")


def change(time: int, place: int, *, transaction: bool, size: int = 100) -> Change:
    event = ChangeEvent(
        event_id=f"{time}:{place}",
        source="shop",
        database="shop",
        tenant="shop",
        collection="orders",
        cluster_time=ClusterTime(time, 0),
        timestamp=time,
        position=token(time, place).data,
        document_id=f"{place}",
        key=Raw(b"{}"),
        operation=Operation.INSERT,
        transaction=f"{time}" if transaction else None,
    )
    return Change(event, token(time, place), size)


def assembler() -> Assembler:
    return Assembler("shop", place=lambda at: at.data)


def ids(items: list[Commit | Fragment]) -> list[list[str]]:
    """The events of each commit, with those of its fragments."""
    whole: list[list[str]] = [[]]
    for item in items:
        whole[-1] += [event.event_id for event in item.events]
        if isinstance(item, Commit):
            whole.append([])
    return whole[:-1]


@given(
    sizes=st.lists(st.integers(0, 6), max_size=12),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    empties=st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_replies_that_cut_a_transaction_do_not_cut_its_commit(
    sizes: list[int], cuts: list[int], empties: list[bool]
) -> None:
    """Size 0 is a plain write. A reply ends anywhere; an empty one comes between transactions."""
    changes = [
        change(time, place, transaction=size > 0)
        for time, size in enumerate(sizes, start=1)
        for place in range(max(size, 1))
    ]
    group, items, left, turn = assembler(), list[Commit | Fragment](), changes, 0
    while left:
        reply, left = left[: cuts[turn % len(cuts)]], left[cuts[turn % len(cuts)] :]
        for one in reply:
            items += group.add(one)
        at_end = not left or left[0].token.time != reply[-1].token.time
        done = group.reply_ended(token=reply[-1].token, empty=False)
        assert done is None, "the last event's own token tells nothing of what follows"
        if at_end and empties[turn % len(empties)]:
            done = group.reply_ended(token=reply[-1].token, empty=True)
            items += [done] if done else []
            assert not group.open
        turn += 1
    done = group.reply_ended(token=token(len(sizes) + 1), empty=True)
    items += [done] if done else []

    assert ids(items) == [
        [f"{time}:{place}" for place in range(max(size, 1))]
        for time, size in enumerate(sizes, start=1)
    ]
    assert not any(isinstance(item, Fragment) for item in items)
    assert [item.position for item in items if isinstance(item, Commit)] == [
        token(time, max(size, 1) - 1).data for time, size in enumerate(sizes, start=1)
    ]


def test_a_large_transaction_is_handed_on_in_fragments_and_ends_with_a_commit() -> None:
    """S14: what is held stays bounded, and no position lies inside."""
    group, items = assembler(), list[Commit | Fragment]()
    for place in range(10):
        items += group.add(change(5, place, transaction=True, size=FRAGMENT_BYTES // 3))
    assert group.fragmented
    assert all(isinstance(item, Fragment) for item in items)
    assert max(len(item.events) for item in items) == 3
    ended = group.reply_ended(token=token(6), empty=True)
    assert ended is not None
    assert ended.events
    assert ids([*items, ended]) == [[f"5:{place}" for place in range(10)]]
    assert not group.fragmented
