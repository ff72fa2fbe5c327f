"""What the folder, or the table, of a collection is called."""

import re

_PLAIN = re.compile(r"[A-Za-z0-9_.-]")
_WORD = re.compile(r"\w", re.ASCII)


def folder_of(collection: str) -> str:
    """A folder name that no file system, URL or table format reads in a way of its own.

    Anything but ASCII letters, digits, `_`, `-` and `.` is `~` and its UTF-8 in hex; so is a first
    `_` or `.`, which would hide the folder. Names that differ stay different, but for case.
    """
    return "".join(
        chr(byte) if _PLAIN.match(chr(byte)) and (at or byte not in b"_.") else f"~{byte:02x}"
        for at, byte in enumerate(collection.encode())
    )


def table_name_of(collection: str) -> str:
    """A table's name that every catalog takes: ASCII letters, digits and `_`.

    Any other is `__` and its UTF-8 in hex. Two collections may come to one name, as they may where
    a catalog does not tell upper case from lower: a table says whose it is.
    """
    return "".join(
        chr(byte) if _WORD.match(chr(byte)) else f"__{byte:02x}" for byte in collection.encode()
    )
