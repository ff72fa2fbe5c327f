"""GetRecords through boto3: this store's endpoint against moto's server, on the same machine.

moto keeps everything in memory and makes nothing durable. It is installed into an environment of
its own, so that nothing of it is in Penstock's.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

HERE = Path(__file__).parent
UV = Path(sys.executable).with_name("uv")
_CONFIG = Config(retries={"max_attempts": 0}, parameter_validation=False)


def installed(folder: Path) -> Path:
    """moto's environment in `folder`, made if it is not there; its Python."""
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        subprocess.run([UV, "venv", "--quiet", "--clear", folder], check=True)
        requirements = HERE / "requirements.txt"
        subprocess.run(
            [UV, "pip", "install", "--quiet", "--python", python, "-r", requirements], check=True
        )
        (folder / "done").touch()
    return python


@contextmanager
def moto(python: Path) -> Iterator[str]:
    """moto's server; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _answering(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answering(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("moto's server does not answer") from error
            time.sleep(0.05)


@contextmanager
def ours(folder: Path) -> Iterator[str]:
    """This store's server; yields its address."""
    command = [sys.executable, "-m", "penstock.cli", "store", "serve", folder]
    with subprocess.Popen(
        [*command, "--dynamodb", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["dynamodb"]
        finally:
            process.terminate()


class Reader:
    """A stream of so many records behind an endpoint, and boto3 that reads it."""

    def __init__(self, address: str, records: int) -> None:
        session: Any = boto3.Session(
            aws_access_key_id="AKIDEXAMPLE",
            aws_secret_access_key="secret",  # of nobody
            region_name="us-east-1",
        )
        self._streams = session.client("dynamodbstreams", endpoint_url=address, config=_CONFIG)
        self._tables = session.client("dynamodb", endpoint_url=address, config=_CONFIG)
        self._records = records
        self._arn = self._filled()

    def _filled(self) -> str:
        made = self._tables.create_table(
            TableName="orders",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        text = {"S": "0123456789abcdef" * 56}
        for first in range(0, self._records, 25):
            puts = [
                {"PutRequest": {"Item": {"id": {"S": f"{at:08d}"}, "n": {"N": f"{at}"}, "t": text}}}
                for at in range(first, min(first + 25, self._records))
            ]
            self._tables.batch_write_item(RequestItems={"orders": puts})
        return str(made["TableDescription"]["LatestStreamArn"])

    def read(self) -> float:
        """Read all of it; returns records a second."""
        told = self._streams.describe_stream(StreamArn=self._arn)["StreamDescription"]
        begun, count = time.perf_counter(), 0
        for shard in told["Shards"]:
            iterator = self._streams.get_shard_iterator(
                StreamArn=self._arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while iterator and count < self._records:
                page = self._streams.get_records(ShardIterator=iterator, Limit=1000)
                count += len(page["Records"])
                iterator = page.get("NextShardIterator")
        seconds = time.perf_counter() - begun
        if count != self._records:
            raise RuntimeError(f"{count} records were read of {self._records}")
        return count / seconds

    def close(self) -> None:
        """Close the clients' connections."""
        self._streams.close()
        self._tables.close()
