"""Which ranges are due, and where they end; and a manifest that contradicts itself."""

from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.config import ArchiveConfig
from penstock.archive.manifest import Lost, Manifest, Range, pack, unpack
from penstock.archive.planning import End, Waiting, cuts, due
from penstock.errors import ArchiveDamagedError

steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000)), max_size=60)


@given(steps=steps, range_bytes=st.integers(1, 5000), begin=st.integers(0, 100))
def test_ranges_end_at_commits_make_up_the_whole_and_are_no_smaller_than_asked(
    steps: list[tuple[int, int]], range_bytes: int, begin: int
) -> None:
    sequences = accumulate((rows for rows, _ in steps), initial=begin)
    sizes = accumulate((size for _, size in steps), initial=0)
    ends = [End(*one) for one in zip(sequences, sizes, strict=True)][1:]
    found = cuts(ends, range_bytes=range_bytes)
    assert found == sorted(set(found))
    assert set(found) <= {end.sequence for end in ends}
    assert found[-1:] == [end.sequence for end in ends[-1:]]
    reached = {end.sequence: end.bytes for end in ends} | {begin: 0}
    largest = max((size for _, size in steps), default=0)
    for low, high in list(pairwise([begin, *found]))[:-1]:
        assert reached[high] - reached[low] >= range_bytes
        # Nor larger than it must be: the shares are below twice what is asked.
        assert reached[high] - reached[low] <= 2 * range_bytes + largest


@given(
    size=st.integers(1, 2000),
    range_bytes=st.integers(1, 2000),
    waited=st.integers(0, 5000),
    age=st.integers(1, 5),
)
def test_a_range_is_due_by_its_size_or_its_age(
    size: int, range_bytes: int, waited: int, age: int
) -> None:
    config = ArchiveConfig(range_bytes=range_bytes, range_age=age)
    waiting = Waiting([End(7, size)], since_ms=1_000_000)
    found = due(waiting, config, now_ms=1_000_000 + waited)
    assert found == (size >= range_bytes or waited >= age * 1000)
    assert not due(Waiting([], since_ms=0), config, now_ms=1 << 50)


def sealed(after: int, until: int) -> Range:
    return Range(
        after=after,
        after_check=after,
        until=until,
        until_check=until,
        commits=1,
        bytes=1,
        digest="",
        groups=(until,),
        first_timestamp=0,
        last_timestamp=0,
        schema_version=1,
    )


SOUND = Manifest(
    log_id=(1 << 64) - 1,
    begin=0,
    begin_check=0,
    ranges=(sealed(0, 5), sealed(5, 9), sealed(12, 20)),
    lost=(Lost(after=9, until=12, until_check=12, found_at=1),),
)


def test_a_manifest_is_read_as_it_was_written_and_readers_take_what_follows_a_loss() -> None:
    assert unpack(pack(SOUND), "x") == SOUND
    assert SOUND.until == 20
    readable = SOUND.readable()
    assert (readable.begin, readable.begin_check, readable.ranges) == (12, 12, SOUND.ranges[2:])


@pytest.mark.parametrize("groups", [1, 32, 256])
def test_a_range_takes_no_more_of_the_manifest_than_the_documentation_says(groups: int) -> None:
    """It is written whole for each range, so that each takes so much again and again."""

    def large(number: int) -> Range:
        until = (1 << 40) + number * 1_000_000
        return msgspec.structs.replace(
            sealed(until - 1_000_000, until),
            after_check=(1 << 32) - 1,
            until_check=(1 << 32) - 1,
            chained_after=until - 1,
            commits=999_999,
            bytes=256 << 20,
            digest="f" * 64,
            groups=tuple(range(until - groups + 1, until + 1)),
            first_timestamp=1_700_000_000_000,
            last_timestamp=1_700_000_000_000,
        )

    begin = Manifest(log_id=1, begin=1 << 40, begin_check=(1 << 32) - 1)
    some = msgspec.structs.replace(begin, ranges=tuple(large(one) for one in range(1, 101)))
    assert unpack(pack(some), "x") == some
    assert len(pack(some)) - len(pack(begin)) <= 100 * (335 + 14 * groups)


def test_a_manifest_that_was_written_in_several_lines_is_read() -> None:
    """As they were before."""
    assert unpack(msgspec.json.format(pack(SOUND), indent=1), "x") == SOUND


@pytest.mark.parametrize(
    "ranges",
    [
        (sealed(0, 5), sealed(6, 9), sealed(12, 20)),
        (sealed(0, 5), sealed(4, 9), sealed(12, 20)),
        (sealed(0, 5), sealed(5, 9), sealed(13, 20)),
        (sealed(5, 9), sealed(0, 5)),
        (msgspec.structs.replace(sealed(0, 5), after_check=7),),
        (msgspec.structs.replace(sealed(0, 5), groups=(4,)),),
        (msgspec.structs.replace(sealed(0, 5), groups=()),),
        (msgspec.structs.replace(sealed(0, 5), until=0),),
    ],
)
def test_a_hole_or_an_overlap_that_is_not_named_is_refused(ranges: tuple[Range, ...]) -> None:
    with pytest.raises(ArchiveDamagedError, match="manifest"):
        unpack(pack(msgspec.structs.replace(SOUND, ranges=ranges)), "the manifest")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", pack(SOUND)[:-9], b'{"format":2}'])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveDamagedError):
        unpack(data, "x")
