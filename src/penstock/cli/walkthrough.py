"""What `penstock quickstart` does, and how it shows it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import to_builtins
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from penstock.cli import output
from penstock.cli.compare import Comparison, compare
from penstock.cli.config import Settings, load, missing_extra
from penstock.cli.parent import PARENT_VARIABLE
from penstock.cli.shopkeeper import Shopkeeper
from penstock.cli.tail import oldest
from penstock.client import SyncFollowing, follow_sync
from penstock.errors import ConfigError, ServiceUnavailableError
from penstock.event import ChangeEvent

PIPELINE: Final = "shop"
_COLUMNS: Final = {
    "customers": ("_id", "name", "points"),
    "orders": ("_id", "status", "total"),
    "order_lines": ("order", "line", "product", "amount"),
}
"""The shop's tables, and what is shown of them."""
_MARK: Final = "# Written by `penstock quickstart`, which starts anew where it finds this line.\n"
_CONFIG: Final = """
[log]
path = "log"

[sources.shop]
type = "store"                  # the embedded store that the shop writes; or "mongodb"
path = "shop.store"
start = "beginning"

[serve]
grpc = "127.0.0.1:0"            # 0: any free port
flight = "127.0.0.1:0"
http = "127.0.0.1:0"

[pipelines.shop]
source = "shop"
to = "table"
path = "lake"
trigger = 0.5
"""
_NEXT: Final = """
Next, your own MongoDB (a replica set, or an Atlas cluster). Write [bold]penstock.toml[/]:

    \\[sources.shop]
    type = "mongodb"
    uri = "${{MONGO_URI}}"
    start = "snapshot"          # copy what is there, then follow

    \\[pipelines.orders]
    source = "shop"
    collections = \\["orders"]
    path = "lake/orders"

and run:

    export MONGO_URI='mongodb://127.0.0.1:27017/shop?replicaSet=rs0'
    penstock doctor             # is everything there that it needs?
    penstock run                # captures and serves until Ctrl-C
    penstock tail               # in another terminal: watch changes pass
    penstock pipeline run orders

What this run made is in {folder}: penstock.toml, the shop's store, the log, and the tables
under lake/. Look into the store: penstock store scan {folder}/shop.store orders --limit 3
"""


def walk(folder: Path, *, transactions: int, as_json: bool) -> bool:
    """Run the quickstart in `folder`, and say how it went; whether every table equals the shop."""
    started = time.monotonic()
    settings = load(prepare(folder))
    console = output.stdout()
    console.quiet = as_json
    with Progress(
        TextColumn("[bold]{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=as_json,
    ) as progress:
        comparisons = Run(settings, progress, transactions=transactions).run()
    equal = all(one.equal for one in comparisons)
    seconds = time.monotonic() - started
    if as_json:
        tables = [{**to_builtins(one), "equal": one.equal} for one in comparisons]
        output.emit({"ok": equal, "seconds": round(seconds, 1), "tables": tables})
    else:
        _print(console, comparisons, seconds, folder)
    return equal


def prepare(folder: Path) -> Path:
    """An empty working folder with a configuration; returns the configuration's path.

    Raises ConfigError if the folder holds what no quickstart made.
    """
    config = folder / "penstock.toml"
    if folder.exists() and any(folder.iterdir()):
        if not config.exists() or not config.read_text(encoding="utf-8").startswith(_MARK):
            raise ConfigError(
                f"{folder} holds something that is not of a quickstart. Nothing was changed. "
                f"Name another folder with --folder."
            )
        for name in ("shop.store", "log", "lake", "lake_rejects"):
            shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(_MARK + _CONFIG, encoding="utf-8")
    return config


class Run:
    """One run: a shop, a service, a reader over gRPC, and a Spark query, until all have
    everything."""

    def __init__(self, settings: Settings, progress: Progress, *, transactions: int) -> None:
        self._settings = settings
        self._progress = progress
        self._transactions = transactions
        self._lock = threading.Lock()
        self._applied = 0
        self._told = 0
        """Changes that came over gRPC; `_newest` is the sequence of the last of them."""
        self._newest = 0
        self._written: int | None = None
        """Changes that the shop made, once it has made all."""
        self.stop = threading.Event()
        """Set once all is done, or nothing more can be."""
        self._failed: Exception | None = None

    def run(self) -> list[Comparison]:
        try:
            from penstock.spark.run import run_pipeline
            from penstock.spark.session import local_session
        except ImportError as error:
            raise missing_extra("the quickstart", "spark,java", error) from error
        folder = self._settings.path.parent
        log_path = folder / "output.txt"
        steps = self._progress
        written = steps.add_task("transactions written to the store", total=self._transactions)
        up = steps.add_task("service: capture and serve", total=1)
        spark_up = steps.add_task("Spark", total=1)
        told = steps.add_task("changes followed over gRPC", total=None, start=False)
        merged = steps.add_task("entries merged into Delta", total=None, start=False)
        shop = Shopkeeper(
            folder / "shop.store",
            transactions=self._transactions,
            on_commit=lambda done: steps.update(written, completed=done),
            on_end=lambda changes: self.on_written(changes, told, merged),
        )
        with closing(shop), _service(self._settings, log_path) as service:
            shop.start()
            # Spark takes longest to start; the service comes up meanwhile.
            with _stderr_to(log_path):
                spark = local_session(app_name="penstock quickstart")
            steps.advance(spark_up)
            ready = service()
            steps.advance(up)
            steps.start_task(told)
            steps.start_task(merged)
            try:
                self.follow_during(
                    lambda: run_pipeline(
                        PIPELINE,
                        self._settings.pipelines[PIPELINE],
                        ready["flight"],
                        spark=spark,
                        stop=self.stop,
                        on_progress=lambda done: self._on_applied(done.sequence, merged),
                    ),
                    follow_sync(ready["grpc"], after=oldest(ready["flight"])),
                    told,
                    merged,
                )
            finally:
                spark.stop()
            lake = Path(self._settings.table_pipelines[PIPELINE].path)
            return [
                compare(name, shop.items(name), lake / name, columns=columns)
                for name, columns in _COLUMNS.items()
            ]

    def follow_during(
        self, merge: Callable[[], None], changes: SyncFollowing, told: TaskID, merged: TaskID
    ) -> None:
        """Read `changes` in a thread while `merge` runs, which this stops once all is applied.

        Raises what either raised. The thread has ended by then, however silent the shop is.
        """
        reader = threading.Thread(
            target=self._follow, args=(changes, told, merged), name="quickstart-tail"
        )
        reader.start()
        try:
            merge()
        finally:
            changes.stop()
            reader.join()
        if self._failed is not None:
            raise self._failed

    def on_written(self, changes: int | Exception, told: TaskID, merged: TaskID) -> None:
        """The shop has made all its changes, so many; or could not."""
        if isinstance(changes, Exception):
            self._fail(changes)
            return
        with self._lock:
            self._written = changes
            self._progress.update(told, total=changes)
            self._stop_at_the_end(merged)

    def _follow(self, following: SyncFollowing, told: TaskID, merged: TaskID) -> None:
        """Read changes over gRPC until stopped."""
        try:
            with following as changes:
                for change in changes:
                    if isinstance(change.event, ChangeEvent):
                        with self._lock:
                            self._told += 1
                            self._newest = change.sequence
                            self._progress.update(told, completed=self._told)
                            self._stop_at_the_end(merged)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = error
        self.stop.set()

    def _on_applied(self, sequence: int, merged: TaskID) -> None:
        """The tables hold everything up to `sequence`."""
        with self._lock:
            self._applied = max(self._applied, sequence)
            self._progress.update(merged, completed=self._applied)
            self._stop_at_the_end(merged)

    def _stop_at_the_end(self, merged: TaskID) -> None:
        """Stop once every change was told, and the tables have the last of them."""
        if self._written is None or self._told < self._written:
            return
        self._progress.update(merged, total=self._newest)
        if self._applied >= self._newest:
            self.stop.set()


@contextmanager
def _service(settings: Settings, log_path: Path) -> Generator[Callable[[], dict[str, Any]]]:
    """`penstock run`, as a user would start it; stopped at the end, whatever happens.

    Yields what waits until it is ready and tells where it listens.
    """
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*(sys.executable, "-m", "penstock.cli"), "run", "--json", "--config", settings.path],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        )
    assert process.stdout is not None
    output_lines = process.stdout

    def ready() -> dict[str, Any]:
        line = output_lines.readline()
        if not line:
            raise ServiceUnavailableError(
                f"the service did not start; {log_path} says why. Nothing is left running."
            )
        return msgspec.json.decode(line, type=dict[str, Any])

    try:
        yield ready
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        output_lines.close()


@contextmanager
def _stderr_to(path: Path) -> Generator[None]:
    """What is started in this block, Spark's JVM above all, writes its chatter to a file."""
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _print(console: Console, found: list[Comparison], seconds: float, folder: Path) -> None:
    for one in found:
        if one.sample:
            table = Table(title=f"{one.collection}: the Delta table beside the shop", box=None)
            for column in one.sample_columns:
                table.add_column(column, no_wrap=True)
            table.add_column("in the shop", no_wrap=True)
            for row in one.sample:
                table.add_row(*row)
            console.print(table)
    table = Table(title="Every row, compared")
    for column in ("", "rows", "in Delta", "checksum", "in Delta", ""):
        table.add_column(column, no_wrap=True)
    for one in found:
        mark = "[green]equal[/]" if one.equal else "[bold red]DIFFERENT[/]"
        table.add_row(
            one.collection,
            f"{one.source_rows:,}",
            f"{one.table_rows:,}",
            one.source_checksum,
            one.table_checksum,
            mark,
        )
    console.print(table)
    console.print(f"From nothing to equal tables in {seconds:.0f} s.")
    console.print(_NEXT.format(folder=folder), soft_wrap=True)
