"""What the tests of clusters share: a service behind TLS and a token, and Penstock as a zip."""

import os
import random
import sys
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from penstock.event import ChangeEvent
from penstock.serve.access import Access, AccessConfig
from penstock.serve.access.config import TlsConfig
from penstock.serve.flight import FlightServer
from penstock.spark.java import java_environment
from penstock.wire import to_arrow
from tests.access.certificates import Authority
from tests.access.support import ALL, issue
from tests.flight.blocks import BlockLog
from tests.spark.tables import change
from tests_support.servers.classes import short_lived

ROOT = Path(__file__).parents[2]
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": short_lived(),
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""What a driver on this machine tells a cluster on this machine."""


class Certified:
    """What a service needs to let pipelines in, and nobody else: certificates and their token."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        self.certificate, self.key = authority.sign("localhost").write(folder, "server")
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(authority.certificate)
        self.tokens = folder / "access.json"
        self.token = issue(self.tokens, "pipelines", verbs=ALL)

    def environment(self, temporary: Path) -> dict[str, str]:
        """Of a driver that is let in, with a folder of its own for temporary files."""
        return {
            **os.environ,
            **java_environment(),
            # A test runner's own settings are not the driver's.
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(temporary),
            "TMPDIR": str(temporary),
            "PENSTOCK_TOKEN": self.token,
            "PENSTOCK_TLS_CA": str(self.ca),
        }


@contextmanager
def serving(log: BlockLog, certified: Certified) -> Generator[str]:
    """Serve a log over Flight with TLS to who shows a token; the address."""
    access = Access(AccessConfig(tokens=certified.tokens))
    tls = TlsConfig(certificate=certified.certificate, key=certified.key)
    server = FlightServer(log, access=access, tls=tls)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()
        access.close()


def history(dice: random.Random, *, commits: int) -> list[list[ChangeEvent]]:
    """Commits of inserts, updates and deletes over two collections."""
    live: set[tuple[str, int]] = set()
    made: list[list[ChangeEvent]] = []
    for _ in range(commits):
        events: list[ChangeEvent] = []
        for _ in range(dice.randrange(1, 8)):
            collection, key = dice.choice(["orders", "lines"]), dice.randrange(2000)
            own = (collection, key)
            if own in live and dice.random() < 0.2:
                events.append(change(key, "delete", collection=collection))
                live.discard(own)
            elif own in live and dice.random() < 0.3:
                update = {"updatedFields": {"n": dice.randrange(1000)}}
                events.append(change(key, "update", update=update, collection=collection))
            else:
                document = {"_id": key, "n": dice.randrange(1000), "name": f"name {key}"}
                events.append(change(key, "replace", document, collection=collection))
                live.add(own)
        made.append(events)
    return made


def entries_of(log: BlockLog) -> pa.Table:
    """The whole log."""
    return pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])


def zipped(path: Path) -> Path:
    """Penstock's packages as an archive that Spark hands to executors."""
    with zipfile.ZipFile(path, "w") as archive:
        for package in ("penstock", "pyspark_penstock"):
            for file in sorted((ROOT / "src" / package).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT / "src"))
    return path


def code_places() -> list[Path]:
    """The folders from which this interpreter could import Penstock."""
    places = {Path(entry).resolve() for entry in (*sys.path, str(ROOT / "src")) if entry}
    return sorted(place for place in places if (place / "penstock").is_dir())
