"""A file of LMDB's that was cut is found before it is mapped, and one that only is short is not."""

import random
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from penstock.errors import LogCorruptError
from penstock.kv import STORE, open_env
from penstock.lmdb_pages import cut
from tests.seeds import seed_of

PAGE_BYTES = 4096
READ_ALL = """
import lmdb, sys
env = lmdb.open(sys.argv[1], max_dbs=4, readonly=True, lock=False, map_size=1 << 30)
with env.begin() as txn:
    for name in (b"plain", b"several"):
        for _, value in txn.cursor(env.open_db(name, txn=txn, create=False)):
            hash(value)
"""


def filled(folder: Path, draw: random.Random) -> Path:
    """A file with trees of several levels, large values, several values of a key, free pages."""
    with lmdb.open(str(folder), max_dbs=4, map_size=1 << 30) as env:
        plain, several = env.open_db(b"plain"), env.open_db(b"several", dupsort=True)
        for turn in range(8):
            with env.begin(write=True) as txn:
                for n in range(300):
                    value = draw.randbytes(draw.choice((10, 100, 3000, 20_000)))
                    txn.put(b"%06d" % draw.randrange(2000), value, db=plain)
                    txn.put(b"%d" % (n % 3), draw.randbytes(60), db=several)
                    if turn:
                        txn.delete(b"%06d" % draw.randrange(2000), db=plain)
    return folder / "data.mdb"


def test_a_file_that_was_cut_is_found_out(tmp_path: Path) -> None:
    draw = random.Random(seed_of("lmdb-cut"))
    file = filled(tmp_path, draw)
    whole = file.read_bytes()
    assert cut(file) is None
    pages = len(whole) // PAGE_BYTES
    found = 0
    for kept in (pages // 2, *(draw.randrange(2, pages) for _ in range(5))):
        file.write_bytes(whole[: kept * PAGE_BYTES + draw.choice((0, 1000))])
        missing = cut(file)
        if missing is None:  # nobody uses what is missing
            subprocess.run([sys.executable, "-c", READ_ALL, str(tmp_path)], check=True)
            continue
        found += 1
        assert missing.bytes < missing.needed_bytes == len(whole)
        with pytest.raises(LogCorruptError, match=r"is damaged: its file has .* Restore a backup"):
            open_env(tmp_path, map_bytes=1 << 30, create=False, kind=STORE)
    assert found


def test_a_file_may_lack_pages_that_nobody_uses(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 30) as env:
        with env.begin(write=True) as txn:
            txn.put(b"kept", b"x")
        with env.begin(write=True) as txn:
            txn.put(b"large", bytes(100 * PAGE_BYTES))
        with env.begin(write=True) as txn:
            txn.delete(b"large")
        for turn in b"abcd":  # each writes other pages, those that were given back first
            with env.begin(write=True) as txn:
                txn.put(b"turn", bytes([turn]))
        needed = (env.info()["last_pgno"] + 1) * PAGE_BYTES
    file = tmp_path / "data.mdb"
    whole = file.read_bytes()
    assert len(whole) == needed
    ends = [kept for kept in range(3, len(whole) // PAGE_BYTES) if not _is_cut(file, whole, kept)]
    assert ends
    file.write_bytes(whole[: ends[0] * PAGE_BYTES])
    with lmdb.open(str(tmp_path), map_size=1 << 30) as env, env.begin() as txn:
        assert txn.get(b"kept") == b"x"


def _is_cut(file: Path, whole: bytes, kept: int) -> bool:
    file.write_bytes(whole[: kept * PAGE_BYTES])
    return cut(file) is not None


def test_what_is_no_file_of_lmdb_is_left_to_lmdb(tmp_path: Path) -> None:
    file = tmp_path / "data.mdb"
    assert cut(file) is None
    for content in (b"", b"short", bytes(3 * PAGE_BYTES)):
        file.write_bytes(content)
        assert cut(file) is None
