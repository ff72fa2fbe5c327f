"""Where the time of a test run goes: by file, by fixture and by started program.

A plugin of pytest. Each process that runs tests measures its own files, and appends a line of JSON
for each, as it ends, to the file that PENSTOCK_TEST_TIMES names, or to a temporary one. The process
that hands the files out prints the slowest, and how much of the time was spent on a processor.

Wall time is in seconds. Processor seconds of a file are those of the process that ran it and of
every process started by it or by them, found by a variable in their environment (Linux's
proc_pid_environ(5)), so that servers and JVMs count wherever they were moved to. An orphan that
ends within one file is not counted; a shared server counts for the file that keeps it busy.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests_support.leftovers import marked_processes

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
MARK: Final = "PENSTOCK_TEST_PROCESS"
"""The variable that every process inherits from the one that runs its test: that one's id."""
SHOWN: Final = 20


@dataclass
class File:
    """What the tests of one file took."""

    wall_seconds: float = 0.0
    processor_seconds: float = 0.0
    tests: int = 0
    fixtures: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds to set up each fixture, without those that it asks for."""
    programs: dict[str, int] = field(default_factory=dict[str, int])
    """How many processes were started, by program."""

    def add(self, other: "File") -> None:
        """Add what another process took for the same file, or what another file took."""
        self.wall_seconds += other.wall_seconds
        self.processor_seconds += other.processor_seconds
        self.tests += other.tests
        for name, seconds in other.fixtures.items():
            self.fixtures[name] = self.fixtures.get(name, 0.0) + seconds
        for name, count in other.programs.items():
            self.programs[name] = self.programs.get(name, 0) + count


def processor_seconds(pid: int) -> float:
    """Of a process and of its children that it has waited for; 0 when it is gone."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, numbers[11:15])) / TICKS_PER_SECOND


class Measuring:
    """Measures the tests that this process runs."""

    def __init__(self) -> None:
        self.files: dict[str, File] = defaultdict(File)
        self._mark = os.environ[MARK] = str(os.getpid())
        self._file = ""
        self._since = time.monotonic()
        self._seen: dict[int, float] = {}
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self._file:
            programs, name = self.files[self._file].programs, Path(os.fsdecode(arguments[0])).name
            programs[name] = programs.get(name, 0) + 1

    def _turn(self, file: str) -> None:
        """What was used since the last turn was used by the file until now."""
        now = time.monotonic()
        processes = {os.getpid(), *marked_processes(MARK, self._mark)}
        used = {pid: processor_seconds(pid) for pid in processes}
        if self._file:
            one = self.files[self._file]
            one.wall_seconds += now - self._since
            one.processor_seconds += self._more(used)
            with Path(os.environ["PENSTOCK_TEST_TIMES"]).open("a") as times:
                line = {"process": os.getpid(), "file": self._file, "times": asdict(one)}
                times.write(json.dumps(line) + "\n")
        self._file, self._since, self._seen = file, now, used

    def _more(self, used: dict[int, float]) -> float:
        """A process that ended meanwhile has moved to its parent's sum, and with it all that it had
        used before."""
        gone = sum(seconds for pid, seconds in self._seen.items() if pid not in used)
        more = sum(seconds - self._seen.get(pid, 0.0) for pid, seconds in used.items())
        return max(0.0, more - gone)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        file = str(item.path.relative_to(item.config.rootpath))
        if file != self._file:
            self._turn(file)
        self.files[file].tests += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        since = time.monotonic()
        try:
            return (yield)
        finally:
            if self._file:
                fixtures, name = self.files[self._file].fixtures, fixturedef.argname
                fixtures[name] = fixtures.get(name, 0.0) + time.monotonic() - since

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        yield
        self._turn("")


class Adding:
    """Adds up what each process measured, and shows it."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._own = "PENSTOCK_TEST_TIMES" not in os.environ
        if self._own:
            handle, path = tempfile.mkstemp(prefix="penstock-times-", suffix=".jsonl")
            os.close(handle)
            os.environ["PENSTOCK_TEST_TIMES"] = path

    def pytest_configure(self, config: pytest.Config) -> None:
        if not getattr(config.option, "numprocesses", None):
            config.pluginmanager.register(Measuring())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        path = Path(os.environ["PENSTOCK_TEST_TIMES"])
        files = read(path)
        if self._own:
            path.unlink()
        if len(files) >= SHOWN:
            for line in table(files, time.monotonic() - self._since):
                terminalreporter.write_line(line)


def read(path: Path) -> dict[str, File]:
    """The files that processes wrote there, by name: the sum of what each process wrote last."""
    last: dict[tuple[int, str], dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        told = json.loads(line)
        last[told["process"], told["file"]] = told["times"]
    files: dict[str, File] = defaultdict(File)
    for (_, name), times in last.items():
        files[name].add(File(**times))
    return dict(files)


def table(files: dict[str, File], wall_seconds: float) -> list[str]:
    """The slowest files, the folders, and what was started, most first."""
    rows: list[str] = []

    def head(title: str) -> None:
        rows.extend(("", f"{'wall s':>9} {'processor s':>12} {'tests':>6}  {title}"))

    def show(name: str, of: list[File]) -> None:
        total = File()
        for one in of:
            total.add(one)
        rows.append(
            f"{total.wall_seconds:9.1f} {total.processor_seconds:12.1f} {total.tests:6}  {name}"
        )

    head(f"the {SHOWN} slowest files")
    for name in sorted(files, key=lambda name: -files[name].wall_seconds)[:SHOWN]:
        show(name, [files[name]])
    folders: dict[str, list[File]] = defaultdict(list)
    for name, one in files.items():
        folders[str(Path(*Path(name).parts[:2]))].append(one)
    head("by folder")
    for name in sorted(folders, key=lambda name: -sum(one.wall_seconds for one in folders[name])):
        show(name, folders[name])
    show("all", list(files.values()))
    total = File()
    for one in files.values():
        total.add(one)
    fixtures = Counter(total.fixtures).most_common(8)
    programs = Counter(total.programs).most_common(12)
    rows += [
        "",
        f"fixtures: {', '.join(f'{name} {seconds:.0f} s' for name, seconds in fixtures)}",
        f"started: {', '.join(f'{count} {name}' for name, count in programs)}",
    ]
    if (setup := os.environ.get("PENSTOCK_SETUP_SECONDS")) is not None:
        rows.append(f"setup and installation of servers, before the run: {setup} s")
    rows.append(f"wall time of the run: {wall_seconds:.0f} s")
    return rows


def pytest_configure(config: pytest.Config) -> None:
    """Measure here, or add up what the processes that are started from here measure."""
    plugin: object = Measuring() if hasattr(config, "workerinput") else Adding()
    config.pluginmanager.register(plugin)
