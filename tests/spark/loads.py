"""What the tests of first loads share: a service that captures a real MongoDB, and its writers."""

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from penstock.cli.config import Settings
from penstock.spark.loading.reading import OpenSource
from tests.cli.service import configure

Client = MongoClient[dict[str, Any]]

CONFIG = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "mongodb"
uri = "{uri}"
database = "{database}"
heartbeat_seconds = 0.2
snapshot_chunk_documents = 50
{source}
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
[pipelines.p]
source = "shop"
collections = ["orders"]
path = "lake"
trigger = 0.1
first_load = "source"
first_load_rows = 100
"""


def configured(folder: Path, uri: str, database: str, *, source: str = "") -> Path:
    """A configuration file for one database of a MongoDB and a pipeline with a first load."""
    return configure(folder, CONFIG.format(uri=uri, database=database, source=source))


def opens(settings: Settings) -> OpenSource:
    """What makes the source, as the command does."""
    return settings.sources["shop"].opening()


class Writer(threading.Thread):
    """Inserts, updates and deletes at random until it is told to stop."""

    def __init__(
        self, client: Client, database: str, *, keys: int, seed: int, pause_seconds: float = 0.0
    ) -> None:
        super().__init__(name="writer")
        self._orders = client[database]["orders"]
        self._keys = keys
        self._pause_seconds = pause_seconds
        self._dice = random.Random(seed)
        self._stop_it = threading.Event()
        self.writes = 0

    def run(self) -> None:
        while not self._stop_it.wait(self._pause_seconds):
            key, what = self._dice.randrange(self._keys), self._dice.random()
            self.writes += 1
            if what < 0.3:
                self._orders.delete_one({"_id": key})
            elif what < 0.6:
                self._orders.replace_one({"_id": key}, {"n": self.writes}, upsert=True)
            else:
                self._orders.update_one({"_id": key}, {"$set": {"n": self.writes}})

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


@contextmanager
def writing(
    client: Client, database: str, *, keys: int, seed: int, pause_seconds: float = 0.0
) -> Generator[Writer]:
    """Writes go on inside the block."""
    writer = Writer(client, database, keys=keys, seed=seed, pause_seconds=pause_seconds)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def documents(client: Client, database: str, collection: str = "orders") -> dict[str, Any]:
    """What the source has, by key as the table has it."""
    return {f'{{"_id":{row["_id"]}}}': row for row in client[database][collection].find()}
