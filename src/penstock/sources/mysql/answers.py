"""What a server answers, whatever bytes it describes. Blocks."""

import codecs
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

_DESCRIBED: Final = "penstock_described"


def _found(name: str) -> codecs.CodecInfo | None:
    if name != _DESCRIBED:
        return None
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(
        utf8.encode, lambda data, _="": utf8.decode(data, "backslashreplace"), name=_DESCRIBED
    )


codecs.register(_found)


@contextmanager
def any_bytes(connection: object) -> Generator[None]:
    """Within it, bytes of an answer that are no UTF-8 are read as `\\xff`, and raise nothing.

    A definition has such bytes where a default, a member of an ENUM or a CHECK is binary. The
    client library would raise halfway through the answer, and leave the connection of no use.
    """
    library = cast("Any", connection)
    before = library.encoding
    library.encoding = _DESCRIBED
    try:
        yield
    finally:
        library.encoding = before
