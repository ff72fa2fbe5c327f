"""Where capture goes on, for each state that it can find at its start (P33, P20, P14).

On a real etcd. "The sheet" is the list of server death cases of the puller's protocol; that the
position itself is too old for the source is `tests/checkpoints/test_mongodb_recovery.py`.
"""

import asyncio
import gc
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.cli import publishing
from penstock.cli.capture_process import SystemClock
from penstock.cli.config import Settings
from penstock.cli.control import request
from penstock.cli.publishing import opened_log
from penstock.errors import (
    CheckpointUnavailableError,
    CheckpointUntrustedError,
    ForeignCheckpointError,
    GapError,
    LogLockedError,
    StreamChangedError,
    SupersededError,
)
from penstock.event import Entry, Kind, SystemEvent, kind_of
from penstock.log.maintenance import backup, check
from penstock.ports import Ancestor
from penstock.progress import parse_progress
from penstock.subscribe import start
from penstock.testing.contracts.entries import read_all, require_whole_commits
from tests.checkpoints.support import (
    SHOP,
    etcd_section,
    facts,
    machine,
    published,
    republish,
    service,
)
from tests.waiting import until
from tests_support.servers import EtcdServer, free_ports


def told(entries: list[Entry], source: str) -> list[str]:
    """The transactions of a source, by their positions, in order."""
    positions = [
        entry.event.position
        for entry in entries
        if entry.event.source == source and kind_of(entry.event) in {Kind.DATA, Kind.SCHEMA}
    ]
    return list(dict.fromkeys(positions))


TWO = SHOP.format(transactions=20) + SHOP.format(transactions=5).replace(
    "[sources.shop]", "[sources.other]"
)


@pytest.fixture
def section(etcd: EtcdServer) -> str:
    """An instance of this test's own."""
    return etcd_section(etcd, f"test-{uuid.uuid4().hex[:12]}")


async def test_a_first_machine_begins_at_one_and_publishes_what_it_captures(
    tmp_path: Path, section: str
) -> None:
    settings = machine(tmp_path / "a", section)
    async with service(settings) as running:
        await running.until_position("shop", "1:20")
        copy = await running.until_published()
        bounds = await running.log.bounds()
    assert (bounds.base, bounds.trimmed) == (0, 0)
    assert copy.sources[0].position == "1:20"
    assert (copy.commit, copy.check) == (bounds.head_commit, bounds.head_check)


async def test_what_happened_last_is_published_on_shutdown(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    instance = f"test-{uuid.uuid4().hex[:12]}"
    settings = machine(tmp_path / "a", etcd_section(etcd, instance, interval="1h"))
    async with service(settings) as running:
        await running.until_position("shop", "1:20")
        head = (await running.log.bounds()).head
    copy = await published(settings)
    assert copy is not None
    assert copy.sequence == head


async def reloaded(settings: Settings) -> dict[str, Any]:
    """Have the service that runs with `settings` read its file again."""
    return await asyncio.to_thread(request, settings.log.path, "reload")


async def test_how_often_is_published_and_whether_at_the_end_changes_without_a_restart(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    instance = f"test-{uuid.uuid4().hex[:12]}"
    rarely = etcd_section(etcd, instance, interval="1h") + "event_count = 1000000\n"
    settings = machine(tmp_path / "a", rarely)
    async with service(settings) as running:
        await running.until_position("shop", "1:20")
        await running.until_published_once()
        assert running.publisher is not None
        # The first copy may have been made before anything was captured.
        first = await running.publisher.publish()
        machine(tmp_path / "a", rarely, transactions=25)
        assert (await reloaded(settings))["changed"] == ["shop"]
        await running.until_position("shop", "1:25")
        assert await published(settings) == first
        machine(tmp_path / "a", rarely.replace("1h", "50ms"), transactions=25)
        assert (await reloaded(settings))["applied"] == ["checkpoint.interval"]
        await running.until_published()
        # What a store is, and who we are in it, cannot change under a claim.
        another = rarely.replace('timeout = "10s"', 'timeout = "11s"')
        machine(tmp_path / "a", another, transactions=25)
        answer = await reloaded(settings)
        assert (answer["applied"], answer["needsRestart"]) == (
            ["checkpoint.interval"],
            ["checkpoint.timeout"],
        )
        machine(tmp_path / "a", rarely + "on_shutdown = false\n", transactions=30)
        answer = await reloaded(settings)
        assert (answer["applied"], answer["changed"]) == (["checkpoint.on_shutdown"], ["shop"])
        before = await running.until_published_once()
        await running.until_position("shop", "1:30")
    copy = await published(settings)
    assert copy is not None
    assert copy.sequence == before.sequence


async def test_nothing_is_published_on_shutdown_if_that_is_switched_off(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    section = etcd_section(etcd, f"test-{uuid.uuid4().hex[:12]}", interval="1h")
    section = f"{section}on_shutdown = false\nevent_count = 1000000\n"
    settings = machine(tmp_path / "a", section)
    async with service(settings) as running:
        await running.until_position("shop", "1:20")
    copy = await published(settings)
    assert copy is None or copy.sequence < (await head_of(settings))


async def head_of(settings: Any) -> int:
    from penstock.log import LmdbLogReader

    async with LmdbLogReader(settings.log.path) as reader:
        return (await reader.bounds()).head


async def test_a_new_machine_goes_on_above_the_published_copy_of_the_lost_one(
    tmp_path: Path, section: str
) -> None:
    """P33: nothing of the shop is missing from what both logs hold; the gap is between them."""
    async with service(machine(tmp_path / "a", section)) as lost:
        await lost.until_position("shop", "1:20")
        copy = await lost.until_published()
        before = await read_all(lost.log)
    shutil.rmtree(tmp_path / "a")
    async with service(machine(tmp_path / "b", section, transactions=40)) as new:
        await new.until_position("shop", "1:40")
        bounds = await new.log.bounds()
        entries = await read_all(new.log, after=bounds.trimmed)
        require_whole_commits(entries)
        assert bounds.base == copy.sequence == before[-1].sequence
        assert bounds.ancestors == (Ancestor(log_id=copy.log_id, head=copy.sequence, gone=True),)
        gap = entries[0]
        assert (gap.sequence, gap.commit) == (copy.sequence + 1, copy.commit + 1)
        assert isinstance(gap.event, SystemEvent)
        assert gap.event.kind is Kind.GAP
        said = facts(gap.event.description)
        assert (said["source"], said["to"], said["sequence"]) == ("shop", "1:20", copy.sequence)
        assert "is gone" in said["reason"]
        # The shop's story goes on exactly where the published copy left it.
        assert told(entries, "shop") == [f"1:{n}" for n in range(21, 41)]
        # Markers of the lost log.
        for entry in (before[0], before[-1]):
            place = await start(new.log, entry.progress)
            assert (place.log_id, place.sequence) == (bounds.log_id, bounds.base)
        beyond = structs.replace(
            parse_progress(before[-1].progress), sequence=copy.sequence + 1, check=1
        )
        with pytest.raises(GapError, match="is gone with its disk"):
            await start(new.log, str(beyond))
    report = check(tmp_path / "b" / "log")
    assert report.problems == []


async def test_sources_that_were_published_go_on_and_a_new_one_begins_at_its_start(
    tmp_path: Path, section: str
) -> None:
    """P14: a source added later has a defined start, and its readers are told of the gap too."""
    async with service(machine(tmp_path / "a", section)) as lost:
        await lost.until_position("shop", "1:20")
        copy = await lost.until_published()
    shutil.rmtree(tmp_path / "a")
    async with service(machine(tmp_path / "b", section, TWO)) as new:
        await new.until_position("other", "1:5")
        entries = await read_all(new.log, after=copy.sequence)
        gaps = [entry.event.source for entry in entries if kind_of(entry.event) is Kind.GAP]
        assert gaps == ["other", "shop"]
        assert told(entries, "other") == [f"1:{n}" for n in range(1, 6)]


async def test_a_log_ahead_of_its_published_copy_goes_on_from_its_own_position(
    tmp_path: Path, section: str
) -> None:
    """The sheet's "log ahead": the copy lags by design, and only catches up."""
    settings = machine(tmp_path / "a", section)
    async with service(settings) as first:
        await first.until_position("shop", "1:20")
        copy = await first.until_published()
        log_id = (await first.log.bounds()).log_id
    behind = structs.replace(
        copy,
        sequence=0,
        commit=0,
        check=0,
        sources=(structs.replace(copy.sources[0], position="1:0"),),
    )
    await republish(settings, behind)
    async with service(machine(tmp_path / "a", section, transactions=30)) as again:
        await again.until_position("shop", "1:30")
        now = await again.until_published()
        entries = await read_all(again.log)
    assert now.log_id == log_id
    assert told(entries, "shop") == [f"1:{n}" for n in range(1, 31)]
    assert not [entry for entry in entries if kind_of(entry.event) is Kind.GAP]


async def test_a_restored_backup_captures_again_what_it_lacks_and_refuses_markers_ahead_of_it(
    tmp_path: Path, section: str
) -> None:
    """The sheet's "log behind": the published copy is further, and the log's position is used."""
    async with service(machine(tmp_path / "a", section, transactions=10)) as first:
        await first.until_position("shop", "1:10")
        backup(tmp_path / "a" / "log", tmp_path / "saved")
        saved = (await first.log.bounds()).head
    async with service(machine(tmp_path / "a", section, transactions=20)) as first:
        await first.until_position("shop", "1:20")
        copy = await first.until_published()
        entries = await read_all(first.log)
    shutil.rmtree(tmp_path / "a" / "log")
    (tmp_path / "saved").rename(tmp_path / "a" / "log")
    async with service(machine(tmp_path / "a", section, transactions=20)) as restored:
        await restored.until_position("shop", "1:20")
        now = await restored.until_published()
        again = await read_all(restored.log)
        assert now.log_id != copy.log_id
        assert now.ancestors == (Ancestor(log_id=copy.log_id, head=saved),)
        ids = [entry.event.event_id for entry in again if kind_of(entry.event) is Kind.DATA]
        assert ids == [
            entry.event.event_id for entry in entries if kind_of(entry.event) is Kind.DATA
        ]
        assert (await start(restored.log, entries[saved - 1].progress)).sequence == saved
        with pytest.raises(StreamChangedError, match="restored from a copy"):
            await start(restored.log, entries[-1].progress)


async def test_an_older_copy_of_the_disk_goes_on_as_another_log(
    tmp_path: Path, section: str
) -> None:
    """A snapshot of the file system bears no mark; the published copy gives it away."""
    async with service(machine(tmp_path / "a", section, transactions=10)) as first:
        await first.until_position("shop", "1:10")
        old = await first.log.bounds()
    shutil.copytree(tmp_path / "a" / "log", tmp_path / "snapshot")
    async with service(machine(tmp_path / "a", section, transactions=20)) as first:
        await first.until_position("shop", "1:20")
        copy = await first.until_published()
        entries = await read_all(first.log)
    shutil.rmtree(tmp_path / "a" / "log")
    (tmp_path / "snapshot").rename(tmp_path / "a" / "log")
    async with service(machine(tmp_path / "a", section, transactions=20)) as again:
        await again.until_position("shop", "1:20")
        now = await again.until_published()
        head = (await again.log.bounds()).ancestors[0].head
        assert now.log_id != copy.log_id == old.log_id
        assert (await start(again.log, entries[head - 1].progress)).sequence == head
        with pytest.raises(StreamChangedError):
            await start(again.log, entries[-1].progress)


async def test_a_machine_that_was_replaced_does_not_capture_again(
    tmp_path: Path, section: str
) -> None:
    old = machine(tmp_path / "a", section)
    async with service(old) as first:
        await first.until_position("shop", "1:20")
        await first.until_published()
    async with service(machine(tmp_path / "b", section)) as new:
        copy = await new.until_published()
        with pytest.raises(SupersededError, match="taken over by log"):
            async with service(old):
                pass
        assert (await new.until_published()).log_id == copy.log_id


async def test_a_machine_that_is_replaced_while_it_runs_stops_with_a_clear_error(
    tmp_path: Path, section: str
) -> None:
    """Never do both write: the new one claims its instance before its log begins."""
    async with service(machine(tmp_path / "b", section)):
        pass
    shutil.rmtree(tmp_path / "b")
    replaced = service(machine(tmp_path / "a", section, transactions=1_000_000))
    running = await replaced.__aenter__()
    await running.until_published_once()
    async with service(machine(tmp_path / "b", section, transactions=1_000_000)) as new:
        with pytest.raises(SupersededError, match="was taken over"):
            await running.task
        last = await running.log.bounds()
        base = (await new.log.bounds()).base
        assert base <= last.head
        with pytest.raises(SupersededError):
            await replaced.__aexit__(None, None, None)


async def test_of_two_machines_that_begin_at_once_one_goes_on(tmp_path: Path, section: str) -> None:
    async def live(name: str) -> str:
        try:
            async with service(machine(tmp_path / name, section)) as running:
                await running.until_position("shop", "1:20")
                await running.until_published()
        except (ForeignCheckpointError, SupersededError):
            return "refused"
        return "captured"

    assert sorted(await asyncio.gather(live("a"), live("b"))) in (
        ["captured", "refused"],
        # The second came when the first had ended, and took its place.
        ["captured", "captured"],
    )


async def test_another_log_may_not_publish_under_a_name_that_is_in_use(
    tmp_path: Path, section: str
) -> None:
    async with service(machine(tmp_path / "a", section)) as first:
        await first.until_published()
    async with service(machine(tmp_path / "b", "")) as stranger:
        await stranger.until_position("shop", "1:20")
    with pytest.raises(ForeignCheckpointError, match="instance name of its own"):
        async with service(machine(tmp_path / "b", section)):
            pass


def unreachable(scheme: str) -> str:
    """A store that is down; over https, one that we have no usable certificate for either."""
    (port,) = free_ports(1)
    endpoint = f'endpoints = ["{scheme}://127.0.0.1:{port}"]\nca = "nowhere.pem"\n'
    return f'[checkpoint]\nstore = "etcd"\ninstance = "x"\n{endpoint}'


@pytest.mark.parametrize(
    ("scheme", "code"), [("http", "checkpoint.unavailable"), ("https", "checkpoint.untrusted")]
)
async def test_capture_goes_on_with_its_log_while_the_store_is_down_or_not_trusted(
    tmp_path: Path, scheme: str, code: str
) -> None:
    """A certificate that expired must not keep capture from starting: the database forgets."""
    section = unreachable(scheme) + 'timeout = "1s"\ninterval = "50ms"\n'
    async with service(machine(tmp_path / "a", "")) as first:
        await first.until_position("shop", "1:20")
    async with service(machine(tmp_path / "a", section, transactions=30)) as again:
        await again.until_position("shop", "1:30")
        assert again.publisher is not None
        publisher = again.publisher
        await until(lambda: publisher.status().code == code, task=again.task)
        assert again.publisher.status().sequence is None


# The driver leaves the sockets of connections that failed to the collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.slow
async def test_without_a_log_a_store_that_is_down_is_waited_for_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that began without it would begin in the wrong place, in silence."""
    monkeypatch.setattr(publishing, "PATIENCE_SECONDS", 0.1)
    (port,) = free_ports(1)
    unknown = "the host name nowhere.invalid is not known"
    stores = {
        'store = "etcd"\nendpoints = ["http://nowhere.invalid:2379"]': f"etcd: {unknown}",
        f'store = "etcd"\nendpoints = ["http://127.0.0.1:{port}"]': (
            f"etcd: nothing listens at 127.0.0.1:{port}"
        ),
        f'store = "mongodb"\nuri = "mongodb://127.0.0.1:{port}"\ntimeout = 1': (
            f"127.0.0.1:{port} refuses connections"
        ),
    }
    for store, why in stores.items():
        settings = machine(tmp_path / "a", f'[checkpoint]\ninstance = "x"\n{store}\n')
        with pytest.raises(CheckpointUnavailableError, match="begin in the wrong place") as error:
            async with service(settings):
                pass
        assert why in str(error.value)
        del error
    gc.collect()
    async with service(machine(tmp_path / "a", "")) as first:
        assert (await first.log.bounds()).base == 0


async def test_without_a_log_a_store_that_is_not_trusted_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUntrustedError, match=r"ca, certificate and key"):
        async with service(machine(tmp_path / "a", unreachable("https"))):
            pass
    assert not (tmp_path / "a" / "log" / "data.mdb").exists()


async def test_a_second_process_on_the_same_disk_takes_nothing_from_the_first(
    tmp_path: Path, section: str
) -> None:
    settings = machine(tmp_path / "a", section)
    async with service(settings) as running:
        await running.until_published()
        with pytest.raises(LogLockedError):
            async with opened_log(settings, clock=SystemClock()):
                pass
        await running.until_position("shop", "1:20")
        await running.until_published()
