"""What the folder, or the table, of a collection is called."""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Final

_PLAIN = re.compile(r"[A-Za-z0-9_.-]")
_WORD = re.compile(r"\w", re.ASCII)
_BYTES_MAX: Final = 255
"""File systems, and catalogs, take no longer name."""
_CUT: Final = "~~"
_DIGITS: Final = 32
"""Of a digest, in hex."""


def folder_of(collection: str) -> str:
    """A folder name that no file system, URL or table format reads in a way of its own.

    Anything but ASCII letters, digits, `_`, `-` and `.` is `~` and its UTF-8 in hex; so is a first
    `_` or `.`, which would hide the folder. What is too long then ends with `~~` and a digest, as
    no other name does. Names that differ stay different, but for case.
    """
    written = "".join(
        chr(byte) if _PLAIN.match(chr(byte)) and (at or byte not in b"_.") else f"~{byte:02x}"
        for at, byte in enumerate(collection.encode())
    )
    return shortened(written, collection, length_max=_BYTES_MAX, mark=_CUT)


def is_shortened(collection: str) -> bool:
    """Whether its folder does not say its name."""
    return _CUT in folder_of(collection)


def table_name_of(collection: str) -> str:
    """A table's name that every catalog takes: ASCII letters, digits and `_`.

    Any other is `__` and its UTF-8 in hex. What is too long then ends with `__` and a digest. Two
    collections may come to one name, as they may where a catalog does not tell upper case from
    lower: a table says whose it is.
    """
    written = "".join(
        chr(byte) if _WORD.match(chr(byte)) else f"__{byte:02x}" for byte in collection.encode()
    )
    return shortened(written, collection, length_max=_BYTES_MAX, mark="__")


def shortened(
    written: str,
    collection: str,
    *,
    length_max: int,
    mark: str = "~",
    length: Callable[[str], int] = len,
) -> str:
    """`written`, the name of a collection as it is written somewhere, where it is no longer than
    that; else as much of its beginning as fits with `mark` and a digest of the name."""
    if length(written) <= length_max:
        return written
    end = f"{mark}{sha256(collection.encode()).hexdigest()[:_DIGITS]}"
    kept = written[: length_max - len(end)]
    while length(f"{kept}{end}") > length_max:
        kept = kept[:-1]
    return f"{kept}{end}"
