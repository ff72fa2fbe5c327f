"""The environment of the current state: opened, and read in one transaction."""

from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import LogFormatError
from penstock.kv import MAP_BYTES, Env, Transaction, exists, open_env
from penstock.state.facts import Facts
from penstock.state.layout import (
    APPLIED_KEY,
    COLLECTIONS,
    DATABASES,
    FORMAT,
    META,
    ROWS,
    SOURCES,
    Applied,
    CollectionFacts,
    Name,
    SourceFacts,
    name_of,
    number_key,
)

_applied: Final = msgspec.msgpack.Decoder(Applied)


def state_path(log: Path) -> Path:
    """Where the current state of the log at `log` lies."""
    return log / "state"


def open_state(path: Path) -> Env:
    """The environment at `path`, made if it is not there; for its only writer."""
    env = open_env(path, map_bytes=MAP_BYTES, create=True)
    env.databases(DATABASES, create=True)
    return env


def find_state(path: Path) -> Env | None:
    """The environment at `path`, to read; None as long as nobody has made it."""
    if not exists(path):
        return None
    env = open_env(path, map_bytes=MAP_BYTES, create=False)
    if not env.databases(DATABASES, create=False):
        env.close()
        return None
    return env


def read_applied(txn: Transaction, env: Env) -> Applied | None:
    """How much of the log is applied; None before anything was.

    Raises LogFormatError for a state of a newer Penstock.
    """
    written = txn.get(APPLIED_KEY, db=env[META])
    if written is None:
        return None
    applied = _applied.decode(written)
    if applied.format != FORMAT:
        raise LogFormatError(
            f"the state at {env.path} has format {applied.format}; this Penstock reads {FORMAT}. "
            f"Nothing was changed. Use the version that wrote it, or remove the folder: it is "
            f"built again from the log."
        )
    return applied


def write_applied(txn: Transaction, env: Env, applied: Applied) -> None:
    txn.put(APPLIED_KEY, msgspec.msgpack.encode(applied), db=env[META])


def read_source(txn: Transaction, env: Env, source: str) -> SourceFacts:
    """What is known of a source."""
    written = txn.get(source.encode(), db=env[SOURCES])
    return SourceFacts() if written is None else msgspec.json.decode(written, type=SourceFacts)


def read_collections(
    txn: Transaction, env: Env, source: str | None = None
) -> dict[Name, CollectionFacts]:
    """What is known of collections, of one source or of all, by name."""
    prefix = b"" if source is None else source.encode() + b"\0"
    found: dict[Name, CollectionFacts] = {}
    with txn.cursor(env[COLLECTIONS]) as cursor:
        at = cursor.set_range(prefix) if prefix else cursor.first()
        while at and cursor.key().startswith(prefix):
            found[name_of(cursor.key())] = msgspec.json.decode(cursor.value(), type=CollectionFacts)
            at = cursor.next()
    return found


def read_facts(txn: Transaction, env: Env) -> Facts:
    """Everything that is known."""
    with txn.cursor(env[SOURCES]) as cursor:
        sources = {
            key.decode(): msgspec.json.decode(value, type=SourceFacts) for key, value in cursor
        }
    applied = read_applied(txn, env)
    if applied is None:
        return Facts(sources, read_collections(txn, env), next_number=1)
    since = applied.renames_since
    return Facts(
        sources,
        read_collections(txn, env),
        next_number=applied.next_number,
        renames_since=applied.sequence if since is None else since,
    )


def is_empty(txn: Transaction, env: Env, number: int) -> bool:
    """Whether a collection has no rows."""
    prefix = number_key(number)
    with txn.cursor(env[ROWS]) as cursor:
        return not (cursor.set_range(prefix) and cursor.key().startswith(prefix))


def known_collections(log: Path, source: str) -> set[tuple[str, str]]:
    """The (database, collection)s of a source that the state of the log at `log` knows."""
    env = find_state(state_path(log))
    if env is None:
        return set()
    with env, env.read() as txn:
        return {(name.database, name.collection) for name in read_collections(txn, env, source)}
