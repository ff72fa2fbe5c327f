"""Whatever is done to a trail may be done beside its driver, and a proof beside both."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.audit.archives import Archives
from penstock.audit.archiving import archive
from penstock.audit.names import Table
from penstock.audit.retire import Retirer
from penstock.audit.trail import Trail
from penstock.errors import AuditError, TrailMovedError
from tests.audit.proofs import erase, patience, sound, verify
from tests.audit.support import commit_of, marker, row, steps, write, writer_of
from tests.seeds import seed_of

pytestmark = [pytest.mark.server, pytest.mark.slow]


def changes() -> list[list[dict[str, Any]]]:
    """Commits of a few rows, of one and of many parts; keys come again."""
    made: list[list[dict[str, Any]]] = []
    number = 1
    while number < 900:
        rows = (1, 1, 3, 14)[len(made) % 4]
        if rows == 1:
            made.append([row(number, after={"id": number % 7, "v": number})])
        else:
            made.append(commit_of(number, rows))
        number += rows
    return made


def test_erasures_retirements_and_proofs_beside_a_driver(trail: Trail, tmp_path: Path) -> None:
    """No change is lost or there twice, and no proof says that anything is broken."""
    commits = changes()
    write(trail, commits[0], events_max=5)
    failed: list[BaseException] = []
    over = threading.Event()

    def beside(act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not over.is_set():
                    act()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    dice = random.Random(seed_of("beside"))

    def act() -> None:
        erase(trail, f'{{"id": {dice.randrange(7)}}}')
        before = now()
        done = archive(trail, patience(trail), before_ms=1 << 50, table=None, to=tmp_path)
        if done.folder is not None and dice.random() < 0.5:
            retirer = Retirer(trail, patience(trail), Archives.at([tmp_path], source="shop"))
            # A batch has the time at which it was made: it may have come in behind the archive.
            try:
                retirer.retire(Table("db", "orders"), before_ms=before, reason="", by="")
            except AuditError as error:
                assert "in none of the archives" in str(error)  # noqa: PT017

    def prove() -> None:
        report = verify(trail)
        assert report.broken == 0, report.findings

    threads = [beside(act), beside(prove)]
    written = 0
    while written < len(commits) and not failed:
        # As a driver that is started again now and then, a little behind where it stood.
        writer = writer_of(trail)
        begin = max(0, written - dice.randrange(20))
        written = min(len(commits), written + dice.randrange(5, 40))
        for commit in commits[begin:written]:
            while not failed:
                try:
                    writer.write(steps(commit, events_max=5), marker=marker)
                    break
                except TrailMovedError:
                    continue
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []
    # In quiet, so that some went, whatever was refused while batches came in.
    archive(trail, patience(trail), before_ms=1 << 50, table=None, to=tmp_path)
    retirer = Retirer(trail, patience(trail), Archives.at([tmp_path], source="shop"))
    retirer.retire(Table("db", "orders"), before_ms=1 << 50, reason="", by="")
    writer_of(trail).write(steps(commits[-1], events_max=5), marker=marker)
    erase(trail, '{"id": 1}', archives=(tmp_path,))
    report = verify(trail)
    assert sound(report)
    kept = [one["_id"] for one in trail.records.find({"op": {"$ne": "sys"}}, {"_id": 1})]
    gone = [one["_id"] for one in trail.retired.find({}, {"_id": 1})]
    assert gone
    assert len(set(kept) | set(gone)) == len(kept) + len(gone)
    assert len(kept) + len(gone) == sum(len(commit) for commit in commits)


def now() -> int:
    return time.time_ns() // 1_000_000
