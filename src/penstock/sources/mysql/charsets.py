"""Character sets of a server as codecs of Python. Pure.

Which collation is of which character set is the server's to say; it differs between versions. Only
character sets whose every character is known to come out as the server itself converts it are here
(a test compares them all); text in another one stops capture.
"""

from typing import Final

CODECS: Final[dict[str, str]] = {
    "ascii": "ascii",
    "latin1": "penstock_latin1",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
"""By character set. latin1 is Windows-1252, in which the server fills the five holes."""

LATIN1_TABLE: Final = "".join(
    bytes([byte]).decode("cp1252", errors="ignore") or chr(byte) for byte in range(256)
)
"""The characters of the server's latin1, by byte."""


def latin1(data: bytes) -> str:
    """Text of the server's latin1."""
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return "".join(LATIN1_TABLE[byte] for byte in data)


def member(data: bytes, codec: str) -> str:
    """A member of an ENUM or SET. One of a binary column may be any bytes: each that is no text is
    `\\xff`."""
    return latin1(data) if codec == CODECS["latin1"] else data.decode(codec, "backslashreplace")
