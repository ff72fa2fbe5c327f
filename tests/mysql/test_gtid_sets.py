"""Sets of MySQL's GTIDs are what a server makes of the same text."""

import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.mysql.gtid_sets import GtidSet
from tests_support.servers import MySqlServer

UUIDS = ["3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000000-0000-0000-0000-00000000000a"]
TAGS = ["", "one"]
sources = st.tuples(st.sampled_from(UUIDS), st.sampled_from(TAGS))
numbers = st.integers(0, 63).map(lambda bits: {n + 1 for n in range(6) if bits >> n & 1})
members = st.dictionaries(sources, numbers, max_size=2).map(
    lambda found: {(*source, number) for source, numbers in found.items() for number in numbers}
)
Members = set[tuple[str, str, int]]


def name(uuid: str, tag: str, number: int) -> str:
    return ":".join([uuid, *([tag] if tag else []), str(number)])


def made(members: Members, order: random.Random) -> GtidSet:
    """The set, by one transaction after the other."""
    found = GtidSet()
    for member in order.sample(sorted(members), len(members)):
        found.add(name(*member))
    return found


def text(members: Members) -> str:
    return ",".join(name(*member) for member in members)


@given(members, members, st.randoms(use_true_random=False))
def test_a_set_is_the_same_however_it_came_about_and_knows_what_it_lacks(
    ours: Members, theirs: Members, order: random.Random
) -> None:
    """Resumption hangs on it: what is in the set is not sent again, and all else is."""
    one, two = made(ours, order), made(theirs, order)
    again = GtidSet.parse(one.text())
    assert one.text() == GtidSet.parse(text(ours)).text() == again.text()
    assert again.encoded() == one.encoded()
    missing = {name(*member) for member in theirs - ours}
    lacks = one.lacks(two)
    assert (lacks in missing) if missing else lacks is None
    assert (one.purged(two.text()) is None) == (two.unknown(one.text()) is None) == (not missing)


def test_any_set_of_one_server_knows_what_it_lacks_of_any_other() -> None:
    """S7: all of them, of up to five numbers."""
    every = [
        {(UUIDS[0], "", number + 1) for number in range(5) if bits >> number & 1}
        for bits in range(32)
    ]
    for ours, theirs in product(every, every):
        missing = {name(*member) for member in theirs - ours}
        lacks = GtidSet.parse(text(ours)).lacks(GtidSet.parse(text(theirs)))
        assert (lacks in missing) if missing else lacks is None


@given(members, members)
def test_the_server_agrees(mysql: MySqlServer, ours: Members, theirs: Members) -> None:
    one, two = GtidSet.parse(text(ours)), GtidSet.parse(text(theirs))
    with mysql.connect() as db:
        ((same, subset),) = ask(
            db,
            "SELECT GTID_SUBTRACT(%s, ''), GTID_SUBSET(%s, %s)",
            (text(ours), text(theirs), one.text()),
        )
    assert "".join(same.split()) == one.text()
    assert bool(subset) == (one.lacks(two) is None)


def ask(db: Any, question: str, values: tuple[str, ...]) -> list[Any]:
    with db.cursor() as cursor:
        cursor.execute(question, values)
        return list(cursor.fetchall())


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        UUIDS[0],
        f"{UUIDS[0]}:",
        f"{UUIDS[0]}:0",
        f"{UUIDS[0]}:5-1",
        f"{UUIDS[0]}:9223372036854775807",
        f"{UUIDS[0]}:1-",
        f"{UUIDS[0]}:ta-g:1",
        "0-1-5",
    ],
)
def test_what_is_no_set_is_refused(wrong: str) -> None:
    """A9: and never taken for the empty one."""
    with pytest.raises(ValueError):  # noqa: PT011 - whichever the words
        GtidSet.parse(wrong)


def test_a_set_is_read_as_people_write_it() -> None:
    said = f"{UUIDS[0].upper()}:3:1-2 : TAG:7,\n {UUIDS[1]}:5-5"
    assert GtidSet.parse(said).text() == f"{UUIDS[1]}:5,{UUIDS[0]}:1-3:tag:7"
    run_of = GtidSet.parse(f"{UUIDS[0]}:1-3:5-7")
    run_of.add(f"{UUIDS[0]}:4")
    assert run_of.text() == f"{UUIDS[0]}:1-7"
