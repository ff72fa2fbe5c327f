"""A log of another format: refused with a sentence, or upgraded once, whole or not at all."""

from pathlib import Path

import lmdb
import pytest

from penstock.errors import LogError, LogFormatError, OutdatedFormatError
from penstock.event import Commit
from penstock.kv import Env, Transaction
from penstock.log import LmdbLog, LmdbLogReader, LogConfig, formats
from penstock.log.layout import FORMAT_KEY, META, pack_u64, unpack_u64
from penstock.log.maintenance import check
from penstock.testing.contracts.entries import changes, read_all

NOTE = b"note"


def config(path: Path) -> LogConfig:
    return LogConfig(path=path, free_bytes_min=0)


async def log_of_format(path: Path, value: bytes) -> dict[bytes, bytes]:
    """A log with three entries that says it has this format; what its `meta` holds."""
    async with LmdbLog(config(path)) as log:
        await log.append([Commit(source="a", position="1", events=changes("a", "1", 3))])
    with (
        lmdb.open(str(path), max_dbs=16, map_size=1 << 30) as env,
        env.begin(write=True, db=env.open_db(META)) as txn,
    ):
        txn.put(FORMAT_KEY, value)
    return meta_of(path)


def meta_of(path: Path) -> dict[bytes, bytes]:
    with (
        lmdb.open(str(path), max_dbs=16, map_size=1 << 30) as env,
        env.begin(db=env.open_db(META)) as txn,
    ):
        return dict(txn.cursor())


def noting(text: bytes) -> formats.Upgrade:
    """A step that shows that it ran, and after which."""

    def step(txn: Transaction, env: Env) -> None:
        txn.put(NOTE, txn.get(NOTE, b"", db=env[META]) + text, db=env[META])

    return step


@pytest.mark.parametrize("value", [pack_u64(0), b"", b"\0\1"])
async def test_a_format_that_never_was_is_damage_and_refused_unchanged(
    tmp_path: Path, value: bytes
) -> None:
    before = await log_of_format(tmp_path, value)
    with pytest.raises(LogFormatError, match=r"no Penstock ever wrote.*Nothing was changed"):
        LmdbLog(config(tmp_path))
    with pytest.raises(LogFormatError, match="no Penstock ever wrote"):
        LmdbLogReader(tmp_path)
    with pytest.raises(LogFormatError, match="no Penstock ever wrote"):
        check(tmp_path)
    assert meta_of(tmp_path) == before


async def test_an_older_log_is_upgraded_step_by_step_once_and_keeps_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_of_format(tmp_path, pack_u64(1))
    monkeypatch.setattr(formats, "FORMAT", 3)
    monkeypatch.setattr(formats, "UPGRADES", {1: noting(b"1to2,"), 2: noting(b"2to3,")})
    with pytest.raises(OutdatedFormatError, match=r"format 1.*`penstock run` upgrades it"):
        LmdbLogReader(tmp_path)
    with pytest.raises(OutdatedFormatError):
        await LmdbLogReader.open(tmp_path, timeout_seconds=0)
    for _ in range(2):
        async with LmdbLog(config(tmp_path)) as log:
            assert (await log.bounds()).head == 3
            assert len(await read_all(log)) == 3
    meta = meta_of(tmp_path)
    assert (meta[NOTE], unpack_u64(meta[FORMAT_KEY])) == (b"1to2,2to3,", 3)
    async with LmdbLogReader(tmp_path) as reader:
        assert (await reader.bounds()).head == 3


async def test_a_step_that_fails_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await log_of_format(tmp_path, pack_u64(1))

    def failing(txn: Transaction, env: Env) -> None:
        raise LogError("the disk is not what it was")

    monkeypatch.setattr(formats, "FORMAT", 3)
    monkeypatch.setattr(formats, "UPGRADES", {1: noting(b"1to2,"), 2: failing})
    with pytest.raises(LogError, match="the disk"):
        LmdbLog(config(tmp_path))
    assert meta_of(tmp_path) == before
    monkeypatch.setattr(formats, "UPGRADES", {1: noting(b"again,"), 2: noting(b"on,")})
    async with LmdbLog(config(tmp_path)):
        pass
    assert meta_of(tmp_path)[NOTE] == b"again,on,"


async def test_a_format_that_no_step_leads_from_is_refused_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await log_of_format(tmp_path, pack_u64(1))
    monkeypatch.setattr(formats, "FORMAT", 3)
    monkeypatch.setattr(formats, "UPGRADES", {1: noting(b"1to2,")})
    with pytest.raises(LogFormatError, match=r"cannot upgrade format 2.*Nothing was changed"):
        LmdbLog(config(tmp_path))
    with pytest.raises(LogFormatError, match="cannot upgrade format 2"):
        LmdbLogReader(tmp_path)
    assert meta_of(tmp_path) == before
