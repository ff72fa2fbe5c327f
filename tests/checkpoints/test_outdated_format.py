"""A log that must be upgraded first, beside a published copy."""

from pathlib import Path

import pytest

from penstock.cli import publishing
from penstock.cli.capture_process import SystemClock
from penstock.cli.publishing import opened_log
from penstock.errors import ForeignCheckpointError
from penstock.log import MemoryLog, formats
from penstock.log.layout import FORMAT_KEY, pack_u64
from tests.checkpoints.doubles import MemoryStore
from tests.checkpoints.support import machine
from tests.checkpoints.test_publish import append, publisher
from tests.log.test_formats import NOTE, log_of_format, meta_of, noting

SECTION = '[checkpoint]\nstore = "etcd"\ninstance = "shop"\nendpoints = ["http://127.0.0.1:1"]\n'


async def test_a_log_that_needs_an_upgrade_is_never_taken_for_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a place that is another log's would be claimed for a log that seems to be new."""
    settings, store = machine(tmp_path, SECTION), MemoryStore()

    def store_of(_: object) -> MemoryStore:
        return store

    monkeypatch.setattr(publishing, "store_of", store_of)
    await log_of_format(settings.log.path, pack_u64(1))
    monkeypatch.setattr(formats, "FORMAT", 2)
    monkeypatch.setattr(formats, "UPGRADES", {1: noting(b"1to2,")})
    other = MemoryLog()
    await append(other, "a", "1", 2)
    published = await publisher(other, store).publish()
    with pytest.raises(ForeignCheckpointError):
        async with opened_log(settings, clock=SystemClock()):
            pass
    assert store.history == [published]
    await store.clear("shop")
    async with opened_log(settings, clock=SystemClock()) as opened:
        assert (await opened.log.bounds()).head == 3
    meta = meta_of(settings.log.path)
    assert (meta[NOTE], meta[FORMAT_KEY]) == (b"1to2,", pack_u64(2))
