"""What proves a trail: leaves, roots, and the chain of batches. Pure.

A leaf is SHA-256 of 0, the record's head by its hash, and its content by its salted hash; a node is
SHA-256 of 1 and its two children; a tree of n leaves is split at the largest power of two below n
(RFC 6962, section 2.1). A batch's hash is SHA-256, or HMAC-SHA-256 with the trail's key, of the one
before it, its root, its number, its first and its last place.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from penstock.audit.records import Parts

SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
NO_BATCH: Final = bytes(HASH_BYTES)
"""What the first batch follows."""
ERASED_SALT: Final = bytes(SALT_BYTES)


def new_salt() -> bytes:
    """A salt for one record; never that of an erased one."""
    while (salt := secrets.token_bytes(SALT_BYTES)) == ERASED_SALT:
        continue
    return salt


def content_digest(content: bytes, salt: bytes) -> bytes:
    """What stands for a record's content, and stays when that is erased."""
    return hashlib.sha256(salt + content).digest()


def leaf(head: bytes, digest: bytes) -> bytes:
    """The leaf of a record: of its head, and of what stands for its content."""
    return hashlib.sha256(b"\0" + hashlib.sha256(head).digest() + digest).digest()


def leaf_of(parts: Parts, salt: bytes) -> bytes:
    """The leaf of a record whose content is there."""
    return leaf(parts.head, content_digest(parts.content, salt))


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The Merkle root over leaves, in their order. Raises ValueError for none."""
    if not leaves:
        raise ValueError("a batch without records has no root")
    # Complete subtrees, largest first, as the bits of the count say.
    complete: list[tuple[int, bytes]] = []
    for one in leaves:
        size, node = 1, one
        while complete and complete[-1][0] == size:
            _, left = complete.pop()
            size, node = size * 2, hashlib.sha256(b"\1" + left + node).digest()
        complete.append((size, node))
    _, node = complete.pop()
    while complete:
        _, left = complete.pop()
        node = hashlib.sha256(b"\1" + left + node).digest()
    return node


def batch_hash(
    *, before: bytes, root: bytes, number: int, first: int, last: int, key: bytes | None
) -> bytes:
    """The chain's hash behind a batch: it proves all batches before it too."""
    said = b"".join(
        (before, root, *(value.to_bytes(8, "big", signed=False) for value in (number, first, last)))
    )
    if key is None:
        return hashlib.sha256(said).digest()
    return hmac.new(key, said, hashlib.sha256).digest()


def cut(joined: bytes, size: int) -> list[bytes]:
    """What lies one after the other in `joined`, each of `size` bytes."""
    return [joined[at : at + size] for at in range(0, len(joined), size)]
