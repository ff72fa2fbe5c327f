"""Changes through a handler or a program: none skipped, none stuck, progress never ahead."""

import asyncio
import json
import os
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.client import (
    DeadLetterFile,
    FileProgress,
    Following,
    MemoryProgress,
    Retry,
    follow,
    handle_changes,
)
from penstock.client.following import AsyncChange
from penstock.client.program import Program
from penstock.errors import ProgramError, RequestError
from penstock.log.memory import MemoryLog
from penstock.progress import parse_progress
from penstock.subscribe.resume import oldest
from tests.serve.conftest import Serve
from tests.subscribe.events import one_each
from tests.waiting import patience, timeouts_of, until, wait_until

QUICK = Retry(initial_seconds=0.001, max_seconds=0.002, max_retries=2)

PROGRAM = """
import json, os, sys
for line in sys.stdin:
    event = json.loads(line)
    with open({seen!r}, "a") as seen:
        seen.write(event["documentId"] + "\\n")
    {do}
    print("ok", flush=True)
"""


class Setting:
    """A service with twenty changes, and a consumer's files."""

    def __init__(self, address: str, after: str, folder: Path) -> None:
        self.address = address
        self.after = after
        self.folder = folder
        self.store = FileProgress(folder / "progress")
        self.letters = DeadLetterFile(folder / "dead.jsonl")

    def changes(self) -> Following:
        return follow(self.address, after=self.after, store=self.store, save_interval_seconds=0)

    def saved(self) -> int:
        marker = self.store.load()
        return parse_progress(marker).sequence if marker else 0

    def dead(self) -> list[tuple[str, int, str]]:
        """Document, attempts and reason of every dead letter."""
        if not self.letters.path.exists():
            return []
        letters = map(json.loads, self.letters.path.read_text().splitlines())
        return [(one["event"]["documentId"], one["attempts"], one["reason"]) for one in letters]

    def program(self, do: str = "pass", *, answer_seconds: float = 60.0) -> Program:
        text = PROGRAM.format(seen=str(self.folder / "seen"), do=do)
        return Program([sys.executable, "-c", text], answer_seconds=answer_seconds)

    def seen(self) -> list[int]:
        """The documents that programs were given, in order, repeats too."""
        return [int(line) for line in (self.folder / "seen").read_text().split()]


@pytest.fixture
async def setting(serve: Serve, tmp_path: Path) -> Setting:
    log = MemoryLog()
    await log.append(one_each(1, 20))
    server = await serve(log)
    return Setting(server.address, str(oldest(await log.bounds())), tmp_path)


async def run_until(setting: Setting, handler: Program, last: int) -> None:
    """Handle changes until all up to `last` are processed, then stop."""
    stop = asyncio.Event()

    async def watched(change: AsyncChange) -> None:
        await handler(change)
        if change.sequence == last:
            stop.set()

    async with handler:
        await handle_changes(
            setting.changes(), watched, dead_letters=setting.letters, retry=QUICK, stop=stop
        )


async def test_a_program_gets_every_change_in_order_and_its_progress_is_kept(
    setting: Setting,
) -> None:
    await run_until(setting, setting.program(), 20)
    assert setting.seen() == list(range(1, 21))
    assert (setting.saved(), setting.dead()) == (20, [])


async def test_p30_progress_never_passes_a_change_that_was_not_answered(setting: Setting) -> None:
    """The marker is looked at from inside the handler, so before each answer."""
    behind: list[bool] = []

    async def handler(change: AsyncChange) -> None:
        behind.append(setting.saved() < change.sequence)
        if change.sequence == 20:
            stop.set()

    stop = asyncio.Event()
    await handle_changes(setting.changes(), handler, stop=stop)
    assert behind == [True] * 20
    assert setting.saved() == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("if event['documentId'] == '7': print('error no such customer', flush=True); continue",
         "the program said: no such customer"),
        ("if event['documentId'] == '7': os._exit(3)", "ended with exit code 3"),
        ("if event['documentId'] == '7': print('what?', flush=True); continue",
         "answered neither"),
        ("if event['documentId'] == '7': print('ok' * 50_000, flush=True); continue",
         "beyond 64 KiB"),
    ],
)  # fmt: skip
async def test_a_change_that_fails_for_good_is_set_aside_whole_and_does_not_hold_up_the_rest(
    setting: Setting, do: str, reason: str
) -> None:
    await run_until(setting, setting.program(do), 20)
    assert [(document, attempts) for document, attempts, _ in setting.dead()] == [("7", 3)]
    assert reason in setting.dead()[0][2]
    assert setting.seen() == [*range(1, 7), 7, 7, 7, *range(8, 21)]
    assert setting.saved() == 20


@pytest.mark.slow
async def test_a_program_that_hangs_is_killed_and_the_change_is_tried_again(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = setting.folder / "once"
    hang = (
        f"if event['documentId'] == '5' and not os.path.exists({str(once)!r}): "
        f"open({str(once)!r}, 'w').close(); sys.stdin.read()"
    )
    expire = timeouts_of(monkeypatch, 77.0)
    running = asyncio.create_task(
        run_until(setting, setting.program(hang, answer_seconds=77.0), 20)
    )
    await until(once.exists, task=running)
    expire()
    await running
    assert setting.seen() == [*range(1, 6), 5, *range(6, 21)]
    assert (setting.saved(), setting.dead()) == (20, [])


@pytest.mark.slow
async def test_what_a_program_that_hangs_has_started_is_killed_with_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the program's output, so nothing would ever end that waits for it."""
    pids = setting.folder / "pids"
    script = setting.folder / "handler.sh"
    script.write_text(f"read line; sleep 600 & echo $! >> {pids}; wait; echo ok")
    pids.touch()
    expire = timeouts_of(monkeypatch, 77.0)
    async with patience(), Program(["bash", str(script)], answer_seconds=77.0) as program:
        handling = asyncio.create_task(handle_changes(setting.changes(), program, retry=QUICK))
        for attempt in (1, 2, 3):
            await until(partial(has_started, pids, attempt), task=handling)
            expire()
        with pytest.raises(ProgramError, match="did not answer within"):
            await handling
        assert len(pids.read_text().split()) == 3
        await all_ended(pids)
    assert setting.saved() == 0


def has_started(pids: Path, count: int) -> bool:
    return pids.read_text().count("\n") == count


def still_running(pids: Path) -> list[str]:
    """Those of the processes that are neither gone nor dead."""
    found: list[str] = []
    for pid in pids.read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            found += [] if re.search(r"\) [ZX] ", stat) else [pid]
    return found


async def all_ended(pids: Path) -> None:
    """Wait for that: a process that is killed closes its files, and so is known to have ended, a
    moment before it is dead."""
    await until(lambda: not still_running(pids))


@pytest.mark.slow
async def test_closing_ends_what_a_program_leaves_behind_holding_its_output(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.program._LEAVE_SECONDS", 0.5)
    pids = setting.folder / "pids"
    script = f"sleep 600 & echo $! >> {pids}; while read line; do echo ok; done"
    async with patience():
        await run_until(setting, Program(["bash", "-c", script]), 20)
        await all_ended(pids)
    assert setting.saved() == 20


@pytest.mark.parametrize("extra", ["ok\nok\n", "ok\no", "error no\nok\n"])
async def test_an_answer_that_came_before_its_event_is_none(setting: Setting, extra: str) -> None:
    """The second line is there before the next event is written: it cannot be about that."""
    do = f"os.write(1, {extra.encode()!r}); continue"
    async with setting.changes() as changes, setting.program(do) as program:
        first, second = await anext(changes), await anext(changes)
        with suppress(ProgramError):
            await program(first)
        with pytest.raises(ProgramError, match="more than one answer"):
            await program(second)
        assert setting.seen() == [1]
        with suppress(ProgramError):
            await program(second)  # by a new one
        assert setting.seen() == [1, 2]


async def test_an_answer_that_lies_in_the_pipe_before_its_event_is_none(setting: Setting) -> None:
    """And not in our memory yet."""
    answered, wrote = setting.folder / "answered", setting.folder / "wrote"
    os.mkfifo(answered)
    do = (
        f"print('ok', flush=True); open({str(answered)!r}).close(); "
        f"print('ok', flush=True); open({str(wrote)!r}, 'w').close(); continue"
    )
    async with setting.changes() as changes, setting.program(do) as program:
        first, second = await anext(changes), await anext(changes)
        await program(first)
        answered.write_text("")
        wait_until(wrote.exists)  # the loop is to read nothing
        with pytest.raises(ProgramError, match="more than one answer"):
            await program(second)
    assert setting.seen() == [1]


async def test_without_dead_letters_the_error_ends_it_and_the_change_comes_again(
    setting: Setting,
) -> None:
    async with setting.program("if event['documentId'] == '3': os._exit(1)") as program:
        with pytest.raises(ProgramError, match="exit code 1"):
            await handle_changes(setting.changes(), program, retry=QUICK)
    assert setting.saved() == 2
    await run_until(setting, setting.program(), 20)
    assert setting.seen() == [1, 2, 3, 3, 3, *range(3, 21)]


async def test_a_dead_letter_that_cannot_be_kept_ends_it_and_passes_nothing(
    setting: Setting,
) -> None:
    setting.letters.path.mkdir()
    with pytest.raises(IsADirectoryError):
        await run_until(setting, setting.program("os._exit(1)"), 20)
    assert setting.saved() == 0


async def test_a_dead_letter_cut_short_by_a_crash_does_not_spoil_the_next(
    setting: Setting,
) -> None:
    setting.letters.path.write_bytes(b'{"reason":"cut sh')
    await run_until(setting, setting.program("if event['documentId'] == '9': os._exit(1)"), 20)
    first, second = setting.letters.path.read_text().splitlines()
    assert first == '{"reason":"cut sh'
    assert json.loads(second)["event"]["documentId"] == "9"


async def test_a_program_that_is_not_there_is_said_so(setting: Setting) -> None:
    async with Program([str(setting.folder / "absent")]) as program:
        with pytest.raises(ProgramError, match="cannot be started"):
            await handle_changes(setting.changes(), program, retry=QUICK)
    assert setting.saved() == 0


async def test_dead_letters_without_a_bound_are_refused(setting: Setting) -> None:
    changes = follow(setting.address, store=MemoryProgress())
    async with changes, setting.program() as program:
        with pytest.raises(RequestError, match="need a bound"):
            await handle_changes(
                changes, program, dead_letters=setting.letters, retry=Retry(max_retries=0)
            )
