"""`[serve.dynamodb]`: what is served, to whom, and what is refused."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from penstock.cli.captured import captured_streams, lacking_views
from penstock.cli.config import load
from penstock.errors import ConfigError
from penstock.log.memory import MemoryLog
from penstock.serve.config import ServeConfig
from tests.cli.service import SHOP, Service, configure, penstock
from tests.waiting import wait_until

_boto3: Any = boto3
CREDENTIALS = "[default]\naws_access_key_id = AKID\naws_secret_access_key = secret\n"


def client(address: str, *, secret: str = "secret") -> Any:
    return _boto3.client(
        "dynamodbstreams",
        endpoint_url=f"http://{address}",
        region_name="us-east-1",
        aws_access_key_id="AKID",
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}),
    )


def test_an_address_alone_is_enough_and_off_is_none() -> None:
    of = ServeConfig.model_validate
    assert of({}).dynamodb is None
    assert of({"dynamodb": "off"}).dynamodb is None
    short = of({"dynamodb": "127.0.0.1:8000"}).dynamodb
    assert short is not None
    assert short == of({"dynamodb": {"address": "127.0.0.1:8000"}}).dynamodb
    assert (short.view, short.shard_age, short.credentials) == ("best", 4 * 3600, None)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('dynamodb = "0.0.0.0:8000"', "reachable from other machines"),
        ('dynamodb = "8000"', "write host:port"),
        ('[serve.dynamodb]\naddress = "127.0.0.1:0"\nview = "ALL"', "serve.dynamodb.view"),
        (
            '[serve.dynamodb]\naddress = "127.0.0.1:0"\nshard_bytes = 1',
            "serve.dynamodb.shard_bytes",
        ),
        ('[serve.dynamodb]\naddress = "127.0.0.1:0"\nscan_bytes = 1', "serve.dynamodb.scan_bytes"),
        ('[serve.dynamodb]\nadress = "127.0.0.1:0"', "serve.dynamodb.adress"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_starts_nothing(
    tmp_path: Path, table: str, text: str
) -> None:
    path = configure(tmp_path, SHOP.format(rate=1) + table)
    with pytest.raises(ConfigError, match="Nothing was started") as caught:
        load(path)
    assert text in str(caught.value)


def test_an_address_of_the_command_line_keeps_the_rest_of_the_table(tmp_path: Path) -> None:
    text = SHOP.format(rate=1) + '[serve.dynamodb]\naddress = "127.0.0.1:1"\nshard_age = "1h"\n'
    path = configure(tmp_path, text)
    kept = load(path, listen={"dynamodb": "127.0.0.1:2"}).serve.dynamodb
    assert kept is not None
    assert (kept.address, kept.shard_age) == ("127.0.0.1:2", 3600)
    assert load(path, listen={"dynamodb": "off"}).serve.dynamodb is None


def test_sources_say_which_views_they_never_give(tmp_path: Path) -> None:
    text = """
[log]
path = "log"
[sources.shop]
type = "script"
[sources.looked-up]
type = "mongodb"
uri = "mongodb://h/"
[sources.whole]
type = "mongodb"
uri = "mongodb://h/"
full_document = "required"
full_document_before_change = "required"
[sources.after]
type = "mongodb"
uri = "mongodb://h/"
full_document = "whenAvailable"
full_document_before_change = "off"
"""
    found = lacking_views(load(configure(tmp_path, text)))
    old, both = {"OLD_IMAGE", "NEW_AND_OLD_IMAGES"}, {"NEW_IMAGE", "NEW_AND_OLD_IMAGES"}
    assert found == {"shop": old, "looked-up": both, "whole": set(), "after": old}


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ['view = "NEW_AND_OLD_IMAGES"', 'views."shop.shop.orders" = "OLD_IMAGE"']
)
def test_a_view_that_a_source_never_gives_is_refused_at_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, setting: str
) -> None:
    text = SHOP.format(rate=1) + f'[serve.dynamodb]\naddress = "127.0.0.1:0"\n{setting}\n'
    done = penstock(capsys, "run", "--one-process", "--config", str(configure(tmp_path, text)))
    assert done.code == 2
    assert "[sources.shop] never gives what" in " ".join(done.err.split())


@pytest.mark.parametrize("table", ["orders", "shop", "shp.shop.orders", "shop.my-db.orders"])
async def test_a_view_of_a_table_that_cannot_be_is_refused(tmp_path: Path, table: str) -> None:
    """A name that is mistyped is no wish that nobody hears."""
    views = f'[serve.dynamodb]\naddress = "127.0.0.1:0"\nviews."{table}" = "KEYS_ONLY"\n'
    settings = load(configure(tmp_path, SHOP.format(rate=1) + views))
    assert settings.serve.dynamodb is not None
    with pytest.raises(ConfigError, match="no source here can have a table of that name"):
        async with captured_streams(settings, settings.serve.dynamodb, MemoryLog()):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--one-process",)])
def test_the_shop_is_served_to_who_has_a_key(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "credentials").write_text(CREDENTIALS)
    text = SHOP + '[serve.dynamodb]\naddress = "127.0.0.1:0"\ncredentials = "credentials"\n'
    with Service(configure(tmp_path, text.format(rate=300)), *options) as service:
        address = service.ready["dynamodb"]
        streams = client(address)
        found = wait_until(lambda: streams.list_streams(TableName="shop.shop.orders")["Streams"])
        described = streams.describe_stream(StreamArn=found[0]["StreamArn"])["StreamDescription"]
        assert described["StreamViewType"] == "NEW_IMAGE"
        with pytest.raises(ClientError) as caught:
            client(address, secret="wrong").list_streams()
        error: Any = caught.value
        assert error.response["Error"]["Code"] == "InvalidSignatureException"
        assert "secret" not in service.errors()


def test_what_a_file_configures_says_the_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = configure(tmp_path, SHOP.format(rate=1) + 'dynamodb = "127.0.0.1:8000"\n')
    done = penstock(capsys, "config", "check", "--json", "--config", str(path))
    assert json.loads(done.out)["dynamodb"] == "127.0.0.1:8000"
