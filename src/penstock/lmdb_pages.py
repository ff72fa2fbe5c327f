"""Whether an LMDB file has all of the pages that are in use.

LMDB maps its file into memory: a page that is not there ends the process by SIGBUS, without a word.
A file may be shorter than what its header counts: pages that a transaction took and gave back are
never written. So where it is, the pages in use are found by walking LMDB's trees, by reads that
fail instead.

Source of the format: MDB_meta, MDB_db, MDB_page and MDB_node in LMDB's mdb.c (0.9, 64 bits,
little-endian).
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_MAGIC: Final = 0xBEEFC0DE
_META: Final = struct.Struct("<16xIIQQ48s48sQQ")
"""Behind a page's header: magic, version, address, size of the map, the tree of free pages, the
main tree, the last page, the transaction."""
_TREE: Final = struct.Struct("<IHHQQQQQ")
"""Of a free tree, first the size of a page; last the number of the root."""
_PAGE: Final = struct.Struct("<QHHHH")
"""Its number, unused, flags, and where its free part begins and ends."""
_NODE: Final = struct.Struct("<HHHH")
"""The size of its data, or the first bits of a page's number; flags, or the last bits; the size of
its key."""
_BRANCH, _LEAF, _LEAF_OF_FIXED = 0x01, 0x02, 0x20
_LARGE, _TREE_INSIDE = 0x01, 0x02
_NO_ROOT: Final = (1 << 64) - 1


class Cut(NamedTuple):
    """A file without pages that are in use."""

    bytes: int
    """Its size,"""
    needed_bytes: int
    """and what its header counts."""


class _Meta(NamedTuple):
    page_bytes: int
    roots: tuple[int, int]
    last_page: int
    transaction: int

    @property
    def needed_bytes(self) -> int:
        return (self.last_page + 1) * self.page_bytes


class _DamagedError(Exception):
    """A page is not there, or is none."""


def cut(file: Path) -> Cut | None:
    """What is missing; None for a file that has all, that LMDB would begin, or that is not there.

    A file that is no LMDB's is LMDB's to refuse.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        while True:
            meta = _newest(fd)
            if meta is None:
                return None
            size = os.fstat(fd).st_size
            if size >= meta.needed_bytes or _is_whole(fd, size, meta):
                return None
            if _newest(fd) == meta:  # else another process has used pages again meanwhile
                return Cut(size, meta.needed_bytes)
    finally:
        os.close(fd)


def _newest(fd: int) -> _Meta | None:
    """What the file is said to have; None where that is not said."""
    first = _meta(os.pread(fd, _META.size, 0))
    if first is None:
        return None
    second = _meta(os.pread(fd, _META.size, first.page_bytes))
    return first if second is None else max(first, second, key=lambda one: one.transaction)


def _meta(data: bytes) -> _Meta | None:
    if len(data) < _META.size:
        return None
    magic, _, _, _, free, main, last, transaction = _META.unpack(data)
    if magic != _MAGIC:
        return None
    page_bytes, *_, free_root = _TREE.unpack(free)
    *_, main_root = _TREE.unpack(main)
    return _Meta(page_bytes, (free_root, main_root), last, transaction)


def _is_whole(fd: int, size: int, meta: _Meta) -> bool:
    """Whether all pages in use are within the file."""
    end = size // meta.page_bytes
    left = [root for root in meta.roots if root != _NO_ROOT]
    try:
        while left:
            number = left.pop()
            if number >= end:
                return False
            page = os.pread(fd, meta.page_bytes, number * meta.page_bytes)
            for first, count, is_tree in _named(page):
                if first + count > end:
                    return False
                if is_tree:
                    left.append(first)
    except (_DamagedError, struct.error):
        return False
    return True


def _named(page: bytes) -> Iterator[tuple[int, int, bool]]:
    """The pages that one names: the first, how many, and whether it is of a tree. Raises
    _DamagedError and struct.error for what is no page of a tree."""
    _, _, flags, lower, _ = _PAGE.unpack_from(page)
    if flags & _LEAF_OF_FIXED:
        return
    if not flags & (_BRANCH | _LEAF):
        raise _DamagedError
    for at in range(_PAGE.size, lower, 2):
        (place,) = struct.unpack_from("<H", page, at)
        low, high, node_flags, key_bytes = _NODE.unpack_from(page, place)
        data_at = place + _NODE.size + key_bytes
        if flags & _BRANCH:
            yield low | high << 16 | node_flags << 32, 1, True
        elif node_flags & _LARGE:
            (first,) = struct.unpack_from("<Q", page, data_at)
            data_bytes = low | high << 16
            yield first, -(-(data_bytes + _PAGE.size) // len(page)), False
        elif node_flags & _TREE_INSIDE:
            *_, root = _TREE.unpack_from(page, data_at)
            if root != _NO_ROOT:
                yield root, 1, True
