"""`penstock store serve --dynamodb`: a process that DynamoDB's clients read and write."""

import json
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from penstock import store
from penstock.cli.store_dynamodb import read_keys
from penstock.errors import ConfigError
from tests.children import Child
from tests.cli.service import COMMAND, penstock

_boto3: Any = boto3
CREDENTIALS = """
[default]
aws_access_key_id = AKID
aws_secret_access_key = sec%ret

[other]
aws_access_key_id=OTHER
aws_secret_access_key=second
[empty]
region = eu-west-1
"""


@contextmanager
def serving(*options: str) -> Generator[dict[str, Any]]:
    """The command as its users start it; yields what it says, and stops it as they do."""
    with stopped(*options) as (process, said):
        yield said
        process.send_signal(signal.SIGTERM)


@contextmanager
def stopped(*options: str) -> Generator[tuple[Child, dict[str, Any]]]:
    """The same, with its process, which is to be told to stop inside."""
    environment = {**os.environ, "NO_COLOR": "1"}
    with Child(
        *(*COMMAND, "store", "serve", *options, "--dynamodb", "127.0.0.1:0", "--json"),
        env=environment,
    ) as process:
        yield process, json.loads(process.line())
        assert process.wait() == 0, process.tail()


def client(url: str, *, key: str, secret: str) -> Any:
    return _boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )


@pytest.mark.slow
def test_a_store_is_served_over_both_of_its_protocols_until_it_is_told_to_stop(
    tmp_path: Path,
) -> None:
    path, file = tmp_path / "store", tmp_path / "credentials"
    file.write_text(CREDENTIALS)
    options = (str(path), "--socket", str(tmp_path / "s"), "--dynamodb-credentials", str(file))
    with serving(*options, "--dynamodb-retention", "90m", "--dynamodb-account", "1" * 12) as said:
        ours = client(said["dynamodb"], key="OTHER", secret="second")
        made = ours.create_table(
            TableName="table",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
        )["TableDescription"]
        assert made["TableArn"] == "arn:aws:dynamodb:us-east-1:111111111111:table/table"
        ours.put_item(TableName="table", Item={"id": {"S": "k"}})
        with store.Client(tmp_path / "s") as remote:
            assert remote.get("table", {"id": "k"}) == {"id": "k"}
    with store.open(path, read_only=True) as db, db.view() as view:
        assert db.get("table", {"id": "k"}) == {"id": "k"}
        assert view.streams()[0].retention.age_seconds == 90 * 60


@pytest.mark.slow
def test_a_write_that_waits_for_a_client_of_the_socket_is_answered_at_the_end(
    tmp_path: Path,
) -> None:
    """Else DynamoDB's clients ask again, and what is added is added twice."""
    path, at = tmp_path / "store", tmp_path / "s"
    with store.open(path) as db:
        db.create_table("table").partition_key("id", store.KeyType.STRING).execute()
    options = (str(path), "--socket", str(at), "--transaction-seconds-max", "3")
    with stopped(*options) as (process, said), store.Client(at) as remote:

        def hold() -> None:
            with remote.transact() as transaction:
                transaction.put("table", {"id": "undone"})
                answer = answered_after_sigterm(process, said["dynamodb"])
                assert answer.startswith(b"HTTP/1.1 200 ")

        with pytest.raises(store.StoreError):
            hold()
    with store.open(path, read_only=True) as db:
        assert db.scan("table").execute().items == [{"id": "k", "n": 1}]


def answered_after_sigterm(process: Child, url: str) -> bytes:
    """The answer to a write that the process has begun to read when it is told to stop."""
    host, port = url.removeprefix("http://").split(":")
    update = {
        "TableName": "table",
        "Key": {"id": {"S": "k"}},
        "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    body = json.dumps(update).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\nExpect: 100-continue\r\n"
        f"X-Amz-Target: DynamoDB_20120810.UpdateItem\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        with connection.makefile("rb") as lines:
            assert lines.readline().startswith(b"HTTP/1.1 100 ")
            process.send_signal(signal.SIGTERM)
            connection.sendall(body)
            return lines.read().lstrip()


def test_keys_are_those_of_an_aws_credentials_file(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(CREDENTIALS)
    assert read_keys(file) == {"AKID": "sec%ret", "OTHER": "second"}
    for bad in ("", "[default]\nregion = x\n", "secret"):
        file.write_text(bad)
        with pytest.raises(ConfigError) as caught:
            read_keys(file)
        assert "Nothing was started" in str(caught.value)
        assert "secret\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "nothing to serve at was said"),
        (("--dynamodb", "0.0.0.0:8000"), "reachable from other machines"),
        (("--dynamodb", "8000"), "write host:port"),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-account", "1"), "--dynamodb-account: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-region", "Europe"), "--dynamodb-region: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-retention", "soon"), "is not a duration"),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-shard-age", "0"), "--dynamodb-shard-age: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-shard-bytes", "1"), "--dynamodb-shard-bytes: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-iterator-age", "0"), "-iterator-age: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-connections-max", "0"), "connections-max: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-request-bytes-max", "9"), "bytes-max: "),
        (("--dynamodb", "127.0.0.1:0", "--dynamodb-reader-threads", "0"), "reader-threads: "),
    ],
)
def test_an_endpoint_that_cannot_be_is_a_sentence_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    done = penstock(capsys, "store", "serve", str(tmp_path / "store"), *options)
    assert done.code == 2
    assert text in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []
