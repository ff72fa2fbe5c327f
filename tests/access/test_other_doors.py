"""The door of DynamoDB Streams."""

import asyncio
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import ClientError
from pydantic import SecretStr

from penstock.clocks import SystemClock
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.serve.access import Access, AccessConfig, TlsConfig
from penstock.serve.dynamodb.captured.index import CapturedIndex
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.server import serving_captured
from tests.access.certificates import Authority
from tests.access.support import ALL, issue
from tests.access.test_tls import tls_of
from tests.subscribe.events import one_each
from tests.waiting import PATIENCE_SECONDS

KEYS = {"KEY1": SecretStr("secret-1"), "KEY2": SecretStr("secret-2")}


def boto(
    address: str,
    key: str,
    secret: str,
    token: str | None = None,
    *,
    verify: Path | None = None,
    own: tuple[Path, Path] | None = None,
) -> Any:
    made: Any = boto3
    return made.client(
        "dynamodbstreams",
        endpoint_url=f"http{'' if verify is None else 's'}://{address}",
        verify=None if verify is None else str(verify),
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=BotoConfig(
            retries={"max_attempts": 1},
            client_cert=None if own is None else (str(own[0]), str(own[1])),
        ),
    )


def tables(client: Any) -> list[str] | str:
    try:
        found: list[dict[str, str]] = client.list_streams()["Streams"]
        return sorted(one["TableName"] for one in found)
    except ClientError as error:
        said: Any = error
        return str(said.response["Error"]["Code"])


@pytest.mark.slow
async def test_dynamodb_streams_are_shown_by_scope_and_denied_is_absent(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    everything = issue(tokens, "everything", verbs=ALL)
    orders = issue(tokens, "orders", collections=("orders",), verbs=ALL)
    masked = issue(tokens, "masked", verbs=ALL, hidden=("at",))
    config_ = {"tokens": tokens, "keys": {"KEY1": "orders", "KEY2": "gone"}}
    access = Access(AccessConfig.model_validate({**config_, "log": tmp_path / "record.jsonl"}))
    config = CapturedConfig(address="127.0.0.1:0")
    async with LmdbLog(LogConfig(path=tmp_path / "log")) as log:
        await log.append([*one_each(1, 2), *one_each(3, 4, collection="lines")])
        index = CapturedIndex(log, tmp_path / "index", config, clock=SystemClock())
        async with serving_captured(log, index, config, keys=KEYS, access=access) as address:
            index.wait(4, seconds=PATIENCE_SECONDS)

            def ask() -> None:
                both, one = ["shop.db.lines", "shop.db.orders"], ["shop.db.orders"]
                refused = "UnrecognizedClientException"
                assert tables(boto(address, "any", "any", everything)) == both
                assert tables(boto(address, "any", "any", orders)) == one
                assert tables(boto(address, "any", "any", masked)) == []
                assert tables(boto(address, "any", "any", orders[:-1] + "-")) == refused
                assert tables(boto(address, "KEY1", "secret-1")) == one
                assert tables(boto(address, "KEY2", "secret-2")) == refused
                assert tables(boto(address, "KEY1", "wrong")) == "InvalidSignatureException"
                client = boto(address, "any", "any", everything)
                (arn,) = [
                    found["StreamArn"]
                    for found in client.list_streams(TableName="shop.db.lines")["Streams"]
                ]
                said: list[str] = []
                for named in (arn, arn.replace("lines", "absent")):
                    with pytest.raises(ClientError) as caught:
                        boto(address, "KEY1", "secret-1").describe_stream(StreamArn=named)
                    said.append(str(caught.value).replace(named, "ARN"))
                assert said[0] == said[1]

            await asyncio.to_thread(ask)
    access.close()
    told = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    # A signature that is none is refused too, and by whom it was is not known.
    assert [(one["who"], one["code"]) for one in told if not one["allowed"]] == [
        ("", "access.unauthenticated")
    ] * 3


@pytest.mark.slow
async def test_a_certificate_opens_dynamodb_streams_whatever_it_signs_with(tmp_path: Path) -> None:
    authority, tokens = Authority(), tmp_path / "access.json"
    issue(tokens, "app", subject="app.example", verbs=ALL)
    access = Access(AccessConfig(tokens=tokens))
    config = CapturedConfig(address="127.0.0.1:0")
    tls = TlsConfig.model_validate(tls_of(tmp_path, authority, mutual=True))
    ca = tmp_path / "clients.crt"
    async with LmdbLog(LogConfig(path=tmp_path / "log")) as log:
        await log.append(one_each(1, 2))
        for keys in ({}, KEYS):
            index = CapturedIndex(log, tmp_path / f"index{len(keys)}", config, clock=SystemClock())
            async with serving_captured(
                log, index, config, keys=keys, access=access, tls=tls
            ) as address:
                index.wait(2, seconds=PATIENCE_SECONDS)
                for name, expected in (
                    ("app.example", ["shop.db.orders"]),
                    ("other.example", "UnrecognizedClientException"),
                ):
                    own = authority.sign(name).write(tmp_path, name)
                    client = boto(address, "any", "any", verify=ca, own=own)
                    assert await asyncio.to_thread(tables, client) == expected, (name, keys)
    access.close()


@pytest.mark.slow
async def test_a_certificate_alone_opens_nothing_where_keys_are_asked_for(tmp_path: Path) -> None:
    """Without `[access]` nobody says what a certificate may do: the keys do."""
    authority = Authority()
    config = CapturedConfig(address="127.0.0.1:0")
    tls = TlsConfig.model_validate(tls_of(tmp_path, authority, mutual=True))
    ca, own = tmp_path / "clients.crt", authority.sign("app.example").write(tmp_path, "app")
    async with LmdbLog(LogConfig(path=tmp_path / "log")) as log:
        await log.append(one_each(1, 2))
        index = CapturedIndex(log, tmp_path / "index", config, clock=SystemClock())
        async with serving_captured(log, index, config, keys=KEYS, tls=tls) as address:
            index.wait(2, seconds=PATIENCE_SECONDS)
            for key, secret, expected in (
                ("any", "any", "UnrecognizedClientException"),
                ("KEY1", "wrong", "InvalidSignatureException"),
                ("KEY1", "secret-1", ["shop.db.orders"]),
            ):
                client = boto(address, key, secret, verify=ca, own=own)
                assert await asyncio.to_thread(tables, client) == expected, key
                client = boto(address, key, secret, "any token", verify=ca, own=own)
                assert await asyncio.to_thread(tables, client) == expected, key
