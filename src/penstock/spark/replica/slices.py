"""Many things, some at a time. Pure."""

from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_KEYS: Final = 500
"""A thousand or more would be a table of its own to MariaDB."""
_KEYS_BYTES: Final = 256 << 10


def slices_of(
    things: Iterable[T], size_of: Callable[[T], int], *, count_max: int, bytes_max: int
) -> Generator[list[T]]:
    """So many, or so many bytes, at a time at most; a larger one alone."""
    held: list[T] = []
    size = 0
    for one in things:
        more = size_of(one)
        if held and (len(held) >= count_max or size + more > bytes_max):
            yield held
            held, size = [], 0
        held.append(one)
        size += more
    if held:
        yield held


def key_slices(keys: Iterable[str]) -> Generator[list[str]]:
    """As many keys as one statement names."""
    return slices_of(keys, lambda key: len(key.encode()), count_max=_KEYS, bytes_max=_KEYS_BYTES)
