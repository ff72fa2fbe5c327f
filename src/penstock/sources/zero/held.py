"""What a transaction has said so far: nothing of it counts before its commit."""

import tempfile
from collections.abc import Iterator
from typing import Final

MEMORY_BYTES_MAX: Final = 4 << 20
_LENGTH: Final = 4


class Held:
    """Texts in their order; beyond MEMORY_BYTES_MAX they are in a temporary file."""

    def __init__(self) -> None:
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None

    def add(self, text: bytes) -> None:
        """Keep another one. Raises OSError where the disk has no room."""
        if self._file is None:
            self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by what takes it
                max_size=MEMORY_BYTES_MAX
            )
        self._file.write(len(text).to_bytes(_LENGTH, "big"))
        self._file.write(text)

    def taken(self) -> Iterator[bytes]:
        """All of them, which are forgotten with it."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            file.seek(0)
            while head := file.read(_LENGTH):
                yield file.read(int.from_bytes(head, "big"))

    def drop(self) -> None:
        """Forget them."""
        if self._file is not None:
            self._file.close()
            self._file = None
