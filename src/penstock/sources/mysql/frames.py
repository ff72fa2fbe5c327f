"""The compressed form of the protocol: frames around the packets, from the end of the handshake on.

A frame is three bytes of how much follows, a number, three bytes of how much that comes to when it
is unpacked (0: it is not packed), and that much. Packets may begin and end anywhere in frames. What
we send is a few short questions, and is never packed. TLS is under the frames, not above.
Sources: the MySQL source documentation, "Compression" (page_protocol_basic_compression); the
MariaDB documentation, "0-Packet" (compressed packet).
"""

import socket
import ssl
import zlib
from typing import Final, Literal

import pyarrow as pa
import pymysql

Algorithm = Literal["zlib", "zstd"]
HEAD_BYTES: Final = 7
FRAME_BYTES_MAX: Final = 0xFFFFFF
"""Of what follows a frame's head, and of what it comes to: three bytes tell no more."""
_READ_BYTES: Final = 256 << 10


class MalformedFrameError(pymysql.err.InternalError):
    """A frame is not what its head says, or does not follow the one before."""

    def __init__(self, why: str) -> None:
        super().__init__(2027, why)
        self.why = why


class Unpacker:
    """Bytes of a connection to what their frames hold, wherever they are cut. Pure.

    Holds no more than one frame, and makes no more of it than its head says. Raises
    MalformedFrameError, and is of no use after it.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._unpacked = _unzlibbed if algorithm == "zlib" else _unzstded
        self._buffer = bytearray()
        self._number = 0
        self.counts_anew = False
        """Whether the numbers may begin anew at any frame."""

    def answers(self, number: int) -> None:
        """What comes next answers a frame that had this number."""
        self._number = number + 1 & 0xFF

    def take(self, data: bytes) -> bytes:
        """What the frames hold that are whole with `data`."""
        self._buffer += data
        parts: list[bytes] = []
        at, end = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - at >= HEAD_BYTES:
                size = int.from_bytes(view[at : at + 3], "little")
                if not size:
                    raise MalformedFrameError("a frame that holds nothing")
                number = view[at + 3]
                if number != self._number and not (self.counts_anew and number <= 1):
                    raise MalformedFrameError(
                        f"a frame with the number {number} where {self._number} follows"
                    )
                stop = at + HEAD_BYTES + size
                if stop > end:
                    break
                whole = int.from_bytes(view[at + 4 : at + HEAD_BYTES], "little")
                packed = bytes(view[at + HEAD_BYTES : stop])
                parts.append(self._unpacked(packed, whole) if whole else packed)
                self._number = number + 1 & 0xFF
                at = stop
        del self._buffer[:at]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _unzlibbed(packed: bytes, size: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        # Never more than one byte beyond what is right.
        whole = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise MalformedFrameError("a frame that zlib does not take") from error
    if len(whole) != size or not unpacker.eof or unpacker.unused_data:
        raise MalformedFrameError(f"a frame that is not the {size} bytes that it says")
    return whole


def _unzstded(packed: bytes, size: int) -> bytes:
    try:
        # It writes into so many bytes, and refuses what comes to fewer or to more.
        whole = pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True)
    except OSError as error:
        raise MalformedFrameError(
            f"a frame that zstd does not take, or is not the {size} bytes that it says"
        ) from error
    return bytes(whole)


def framed(data: bytes, number: int) -> bytes:
    """`data` in frames that are not packed, of which the first has this number."""
    parts: list[bytes] = []
    for at in range(0, len(data), FRAME_BYTES_MAX):
        part = data[at : at + FRAME_BYTES_MAX]
        parts += [len(part).to_bytes(3, "little"), bytes([number]), bytes(3), part]
        number = number + 1 & 0xFF
    return b"".join(parts)


class FramedSocket:
    """What is left of a socket for packets, where frames are around them. One thread at a time.

    Raises what a socket raises, and MalformedFrameError.
    """

    def __init__(self, under: socket.socket, algorithm: Algorithm) -> None:
        self.under = under
        self._unpacker = Unpacker(algorithm)
        self._number = 0
        self._left = memoryview(b"")

    # --- as a socket -----------------------------------------------------------------------------

    def sendall(self, data: bytes) -> None:
        """Send whole packets. The number 0 of the first begins a command, and the frames' anew."""
        if data[3] == 0:
            self._number = 0
        self.under.sendall(framed(data, self._number))
        self._number += -(-len(data) // FRAME_BYTES_MAX)
        self._unpacker.answers(self._number - 1)

    def send_aside(self, data: bytes) -> None:
        """Send a packet that nothing answers."""
        self.under.sendall(framed(data, 0))

    def counts_anew(self) -> None:
        """The server counts its frames anew whenever it has sent what it waits for a reply to."""
        self._unpacker.counts_anew = True

    def recv(self, size: int) -> bytes:
        """Some bytes of packets, no more than `size`; none where the connection was closed."""
        while not self._left:
            data = self.under.recv(_READ_BYTES)
            if not data:
                return b""
            self._left = memoryview(self._unpacker.take(data))
        found, self._left = bytes(self._left[:size]), self._left[size:]
        return found

    def pending(self) -> bool:
        """Whether there are bytes to receive that are on no wire any more."""
        return bool(self._left) or is_pending(self.under)

    def settimeout(self, seconds: float | None) -> None:
        """As of a socket."""
        self.under.settimeout(seconds)

    def fileno(self) -> int:
        """As of a socket."""
        return self.under.fileno()

    def close(self) -> None:
        """As of a socket, and of a file."""
        self.under.close()

    # --- as a file -------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """So many bytes of packets; fewer only where the connection was closed."""
        parts: list[bytes] = []
        while size and (part := self.recv(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


Wire = socket.socket | FramedSocket


def is_pending(wire: Wire) -> bool:
    """Whether there is something to receive that no poll of the file would tell."""
    if isinstance(wire, FramedSocket):
        return wire.pending()
    return isinstance(wire, ssl.SSLSocket) and wire.pending() > 0
