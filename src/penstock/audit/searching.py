"""Find the records of a key, in a trail and in its archives."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import bson
import msgspec
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct

from penstock.audit.archives import Archives
from penstock.audit.chain import ERASED_SALT, HASH_BYTES, SALT_BYTES, content_digest
from penstock.audit.checks import cut_of, leaf_seen, seen
from penstock.audit.fold import EXACT
from penstock.audit.names import Names
from penstock.audit.own import OWN, PLACES_MAX
from penstock.audit.reading import Reader
from penstock.audit.trail import Document, Head
from penstock.audit.values import value_of
from penstock.errors import AuditError

Wanted = Callable[[RawBSONDocument], bool]
_WINDOW: Final = 50_000
"""Places that are looked through with one request."""
_TOGETHER: Final = PLACES_MAX["erase"]


class Key(Struct, frozen=True):
    """A key as people write it: an object with its types, or the text that stands for it."""

    text: str | None = None
    document: Document | None = None


def key_of(text: str) -> Key:
    """A key of the command line: a JSON object as {"id": 5}, else the key's text."""
    if text.lstrip().startswith("{"):
        try:
            return Key(document=value_of(msgspec.json.decode(text)))
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise AuditError(
                f"the key is no JSON object ({type(error).__name__}). Nothing was changed. Write "
                f'it as {{"id": 5}}, or as its text.'
            ) from None
    return Key(text=text)


class Marked(Struct, frozen=True):
    """A record that is to be erased."""

    digest: bytes
    """What stands for its content."""
    broken: bool
    """Whether it is not what was written."""


class _Found(Struct, frozen=True):
    record: RawBSONDocument
    salt: bytes | None
    """Of an archive's row; in MongoDB its batch has it."""


class Search:
    """One search, over all places up to a head."""

    def __init__(
        self, reader: Reader, archives: Archives, names: Names, key: Key, head: Head
    ) -> None:
        self._reader = reader
        self._archives = archives
        self._names = names
        self._key = key
        self._head = head
        self._found: dict[int, _Found] = {}
        self.more = False
        """Whether there may be others of the key."""
        self.statements = 0
        """Records of other keys that hold the SQL text of these."""
        self.alike: list[Document] = []
        """Other keys in MongoDB that are written as the same text, by other columns or types."""

    def run(self, *, statements: bool) -> dict[int, Marked]:
        """What is to be erased, by place; with `statements` also where their SQL text is.

        Not more than one record of an erasure holds: `more` says that there are others. Raises
        AuditError for a text that stands for several keys.
        """
        self._own()
        keys = self._keys()
        self.alike = [one for one in self._written_alike() if one not in keys]
        moved = {
            _txn(one.record)
            for one in self._found.values()
            if "moved_to" in one.record["meta"] or "moved_from" in one.record["meta"]
        }
        texts: dict[str, set[int]] = {}
        for one in self._found.values():
            if "sql_at" in one.record["src"]:
                texts.setdefault(_txn(one.record), set()).add(int(one.record["src"]["sql_at"]))
        for txn in sorted(moved):
            told = {"$or": [{"meta.moved_to": {"$in": keys}}, {"meta.moved_from": {"$in": keys}}]}
            self._take(self._stored({"txn.id": txn, **told}))
        if moved:
            self._take(self._archived(lambda one: _txn(one) in moved and _tells(one, keys)))
        holders = {int(one.record["at"]): one for one in self._holders(texts)}
        holders = {at: one for at, one in holders.items() if at not in self._found}
        self.statements = len(holders)
        if statements:
            self._take(iter(holders.values()))
        return {at: self._mark(at, one) for at, one in sorted(self._found.items())}

    def _holders(self, texts: dict[str, set[int]]) -> Iterator[_Found]:
        """The records that have the SQL text of others: by transaction, their numbers in it."""
        for txn, numbers in sorted(texts.items()):
            seq = {"$in": [Int64(number) for number in sorted(numbers)]}
            yield from self._stored({"txn.id": txn, "seq": seq, "src.sql": {"$exists": True}})
        if texts:
            yield from self._archived(
                lambda one: int(one["seq"]) in texts.get(_txn(one), ()) and "sql" in one["src"]
            )

    def _take(self, found: Iterator[_Found]) -> None:
        for one in found:
            self._found.setdefault(int(one.record["at"]), one)

    # --- under the key -------------------------------------------------------------------------

    def _own(self) -> None:
        of_table = self._names.wanted()
        if self._key.document is None:
            wanted = of_table | {"meta.pk_text": self._key.text}
            self._take_some(self._stored(wanted, limit=_TOGETHER))
        else:
            for first in range(1, self._head.at + 1, _WINDOW):
                wanted = of_table | {"meta.pk": self._key.document}
                self._take_some(self._stored(wanted, first=first, limit=_TOGETHER))
                if self.more:
                    return
        self._take_some(self._archived(self._is_own))

    def _take_some(self, found: Iterator[_Found]) -> None:
        for one in found:
            self._found.setdefault(int(one.record["at"]), one)
            if len(self._found) >= _TOGETHER:
                self.more = True
                return

    def _is_own(self, record: RawBSONDocument) -> bool:
        meta: Any = record["meta"]
        if not self._names.hold(meta["db"], meta["tbl"], int(record["at"])):
            return False
        if self._key.document is None:
            return bool(meta.get("pk_text") == self._key.text)
        return "pk" in meta and _plain(meta["pk"]) == self._key.document

    def _keys(self) -> list[Document]:
        """The keys of what was found: one, but for a text that stands for several."""
        keys: list[Document] = []
        if self._key.document is None:
            wanted = self._names.wanted() | {"meta.pk_text": self._key.text}
            exact = self._reader.trail.records.with_options(codec_options=EXACT)
            keys = self._reader.call(lambda: exact.distinct("meta.pk", wanted))
        for one in self._found.values():
            key = _plain(one.record["meta"]["pk"])
            if key not in keys:
                keys.append(key)
        if self._key.document is None and len(keys) > 1:
            raise AuditError(
                f"{len(keys)} keys of {self._names.table} are written as this text, of other types "
                f'or columns. Nothing was changed. Name one by its columns, as {{"id": 5}}.'
            )
        return keys

    def _written_alike(self) -> list[Document]:
        texts = sorted({str(one.record["meta"]["pk_text"]) for one in self._found.values()})
        if not texts:
            return []
        wanted = self._names.wanted() | {
            "meta.pk_text": {"$in": texts},
            "at": {"$lte": Int64(self._head.at)},
        }
        exact = self._reader.trail.records.with_options(codec_options=EXACT)
        found: list[Document] = self._reader.call(lambda: exact.distinct("meta.pk", wanted))
        return found

    # --- where they lie ------------------------------------------------------------------------

    def _stored(
        self, wanted: Document, *, first: int | None = None, limit: int = 0
    ) -> Iterator[_Found]:
        """In MongoDB, by place; of a window of places, or of all."""
        last = self._head.at if first is None else min(self._head.at, first + _WINDOW - 1)
        wanted = {
            **wanted,
            "at": {"$gte": Int64(first or 1), "$lte": Int64(last)},
            "erased": {"$exists": False},
            "op": {"$ne": OWN},
        }
        records = self._reader.trail.raw_records
        found: list[RawBSONDocument] = self._reader.call(
            lambda: list(records.find(wanted).sort("at", 1).limit(limit))
        )
        for record in found:
            yield _Found(record, None)

    def _archived(self, wanted: Wanted) -> Iterator[_Found]:
        for row in self._archives.rows(1, self._head.at):
            if "erased" not in row.record and row.record["op"] != OWN and wanted(row.record):
                yield _Found(row.record, row.salt)

    def _mark(self, at: int, found: _Found) -> Marked:
        batch: Any = self._reader.batch_of_place(at, last=self._head.batch)
        kept, salt = None, found.salt
        if batch is not None:
            offset = at - int(batch["first"])
            leaves = cut_of(batch, "leaves", HASH_BYTES)
            salts = cut_of(batch, "salts", SALT_BYTES)
            kept = leaves[offset] if offset < len(leaves) else None
            if salt is None and offset < len(salts):
                salt = salts[offset]
        read = seen(found.record)
        if read.parts is None or salt is None or salt == ERASED_SALT:
            return Marked(bytes(HASH_BYTES), broken=True)
        digest = content_digest(read.parts.content, salt)
        return Marked(digest, broken=leaf_seen(read, salt) != kept)


def _txn(record: RawBSONDocument) -> str:
    return str(record["txn"]["id"])


def _tells(record: RawBSONDocument, keys: list[Document]) -> bool:
    meta: Any = record["meta"]
    return any(name in meta and _plain(meta[name]) in keys for name in ("moved_to", "moved_from"))


def _plain(document: RawBSONDocument) -> Document:
    return bson.decode(document.raw, EXACT)  # pyright: ignore[reportUnknownMemberType]
