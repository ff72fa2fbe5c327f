"""What goes over HTTP beside the operations themselves, and who may ask for them."""

import gzip
import json
import select
import socket
import urllib.error
import urllib.request
import zlib
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from pydantic import ValidationError

from penstock.errors import ConfigError
from penstock.serve.dynamodb.config import DynamoConfig
from penstock.serve.dynamodb.errors import WireError
from penstock.serve.dynamodb.signing import Sent, verify
from penstock.telemetry import SERVE_REGISTRY
from tests.serve.dynamodb.support import Served, name_of, served
from tests.store.support import SetClock
from tests.waiting import PATIENCE_SECONDS

LIST = "DynamoDB_20120810.ListTables"
_boto3: Any = boto3


def test_an_answer_has_an_id_and_the_right_checksum(shared: Served) -> None:
    request = urllib.request.Request(f"http://{shared.address}/", b"{}", {"X-Amz-Target": LIST})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        body = answer.read()
    assert answer.headers["Content-Type"] == "application/x-amz-json-1.0"
    assert len(answer.headers["x-amzn-RequestId"]) == 52
    assert int(answer.headers["x-amz-crc32"]) == zlib.crc32(body)


@pytest.mark.parametrize(
    ("accepted", "size", "is_packed"),
    [
        ("gzip", 2000, True),
        ("br;q=1.0, GZIP;q=0.5", 2000, True),
        ("gzip", 700, False),
        ("gzip;q=0, br", 2000, False),
        ("identity", 2000, False),
        ("deflate", 2000, False),
    ],
)
def test_a_long_answer_is_compressed_for_who_accepts_it(
    shared: Served, accepted: str, size: int, is_packed: bool
) -> None:
    wrong = "a" * size  # the answer quotes up to 1000 characters of it
    body = json.dumps({"TableName": "answer", "Key": {}, "ReturnConsumedCapacity": wrong}).encode()
    headers = {"X-Amz-Target": "DynamoDB_20120810.GetItem", "Accept-Encoding": accepted}
    request = urllib.request.Request(f"http://{shared.address}/", body, headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)
    with caught.value as error:
        sent = error.read()
        assert (error.headers["Content-Encoding"] == "gzip") is is_packed
        assert int(error.headers["x-amz-crc32"]) == zlib.crc32(sent)
    assert wrong[:500] in json.loads(gzip.decompress(sent) if is_packed else sent)["message"]


def test_whoever_asks_whether_it_lives_is_answered(shared: Served) -> None:
    with urllib.request.urlopen(f"http://{shared.address}/", timeout=PATIENCE_SECONDS) as answer:
        assert answer.read().decode().startswith("healthy: ")


@pytest.mark.parametrize(
    ("target", "body", "name"),
    [
        ("DynamoDB_20120810.ExecuteStatement", b"{}", "UnknownOperationException"),
        ("DynamoDB_20120810.GetRecords", b"{}", "UnknownOperationException"),
        ("", b"{}", "UnknownOperationException"),
        (LIST, b"{", "SerializationException"),
        (LIST, b"[]", "SerializationException"),
        (LIST, b'{"Limit": "x"}', "SerializationException"),
        (LIST, b'{"Limit": 1e999}', "SerializationException"),
        (LIST, b'{"Limit": 1.5}', "SerializationException"),
        (LIST, b'{"Limit": 2147483648}', "SerializationException"),
        (LIST, b"\xff", "SerializationException"),
        (LIST, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "SerializationException"),
        (
            "DynamoDB_20120810.PutItem",
            b'{"TableName": "none", "Item": {"id": {"S": 5}}}',
            "SerializationException",
        ),
        ("DynamoDB_20120810.PutItem", b'{"TableName": 5}', "SerializationException"),
    ],
)
def test_what_is_no_request_is_told_so(shared: Served, target: str, body: bytes, name: str) -> None:
    status, told, _ = shared.post(target, body)
    assert status == 400
    assert told["__type"] == f"com.amazon.coral.service#{name}"
    assert told["message"]


def test_the_endpoint_is_the_host_that_was_asked(shared: Served) -> None:
    (told,) = shared.client.describe_endpoints()["Endpoints"]
    assert told == {"Address": shared.address, "CachePeriodInMinutes": 1440}


@pytest.mark.parametrize(
    "operation", ["ExecuteStatement", "BatchExecuteStatement", "ExecuteTransaction"]
)
def test_partiql_is_not_supported_and_says_so(shared: Served, operation: str) -> None:
    assert shared.refused(operation, Statement="SELECT * FROM t") == (
        "UnknownOperationException",
        f"{operation}: PartiQL is not supported. Use GetItem, Query, PutItem and their like.",
    )


def test_members_that_are_not_known_or_null_are_passed_over(shared: Served) -> None:
    status, _, _ = shared.post(LIST, {"Limit": None, "Unknown": {"a": 1}})
    assert status == 200


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b'{"Limit":') + gzip.compress(b" 0}")),
        ("GZIP", gzip.compress(b'{"Limit": 0}')),
        ("deflate", zlib.compress(b'{"Limit": 0}')),
    ],
    ids=["two members", "capitals", "deflate"],
)
def test_a_body_may_be_compressed(shared: Served, encoding: str, packed: bytes) -> None:
    status, told, _ = shared.post(LIST, packed, {"Content-Encoding": encoding})
    assert status == 400
    assert "Value '0' at 'limit'" in told["message"]


@pytest.mark.parametrize(
    "packed",
    [b"{}", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") + b"x"],
    ids=["plain", "cut", "more"],
)
def test_a_body_that_is_not_what_its_encoding_says_is_refused(
    shared: Served, packed: bytes
) -> None:
    status, told, _ = shared.post(LIST, packed, {"Content-Encoding": "gzip"})
    assert (status, told["__type"]) == (400, "com.amazon.coral.service#SerializationException")


def test_a_compressed_body_has_the_limit_of_any_other(tmp_path: Path) -> None:
    def listed(everything: Served, size: int) -> int:
        packed = gzip.compress(b"{}".ljust(size))
        assert len(packed) < 2000
        return everything.post(LIST, packed, {"Content-Encoding": "gzip"})[0]

    with served(tmp_path, request_bytes_max=100_000) as everything:
        assert listed(everything, 100_000) == 200
        assert listed(everything, 100_001) == 413
        assert listed(everything, 1_000_000) == 413


def connected(everything: Served) -> socket.socket:
    host, _, port = everything.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def test_a_body_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with served(tmp_path, request_bytes_max=2000) as everything:
        assert everything.post(LIST, {"Unknown": "x" * 1900})[0] == 200
        with connected(everything) as raw:
            head = (
                f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: {LIST}\r\n"
                "Content-Length: 2001\r\n\r\n"
            )
            raw.sendall(head.encode())
            assert raw.recv(4096).startswith(b"HTTP/1.1 413")
        with connected(everything) as raw:
            head = (
                f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: {LIST}\r\n"
                "Transfer-Encoding: chunked\r\n\r\n"
            )
            raw.sendall(head.encode() + b"7d1\r\n" + b" " * 2001 + b"\r\n")
            assert raw.recv(4096).startswith(b"HTTP/1.1 413")
        assert everything.post(LIST, {})[0] == 200


@pytest.mark.slow
def test_bodies_together_hold_no_more_than_four_of_the_largest(tmp_path: Path) -> None:
    """They are read before anybody has said who it is. Small ones always are."""
    size = 256 << 10
    # 64 KiB of each, and 1 MiB of all beyond that: one byte is too many.
    parts = [(64 + 112) << 10] * 8 + [((64 + 128) << 10) + 1]
    head = (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: {LIST}\r\n"
        f"Content-Length: {size}\r\n\r\n"
    ).encode()
    body = b"{}".ljust(size)
    with served(tmp_path, request_bytes_max=size) as everything, ExitStack() as held:
        asking = [held.enter_context(connected(everything)) for _ in parts]
        for one, part in zip(asking, parts, strict=True):
            one.sendall(head + body[:part])
        told, _, _ = select.select(asking, [], [], 30)
        assert len(told) == 1
        assert told[0].recv(4096).startswith(b"HTTP/1.1 503")
        assert everything.post(LIST, {"Unknown": "x" * 60_000})[0] == 200
        for one, part in zip(asking, parts, strict=True):
            if one is not told[0]:
                one.sendall(body[part:])
                assert one.recv(4096).startswith(b"HTTP/1.1 200")
        assert everything.post(LIST, {"Unknown": "x" * 250_000})[0] == 200


@pytest.mark.slow
def test_one_connection_more_than_may_be_is_told_to_come_back(tmp_path: Path) -> None:
    """Of those that are answered: one that only waits for its next request takes no place."""
    asking = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    with served(tmp_path, connections_max=1) as everything, connected(everything) as held:
        held.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told = b""
        while not told.endswith(b"healthy: localhost\n"):
            told += held.recv(4096)
        assert everything.post(LIST, {})[0] == 200
        held.sendall(asking)
        assert held.recv(4096).startswith(b"HTTP/1.1 100")
        with connected(everything) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert raw.recv(4096).startswith(b"HTTP/1.1 503")
    with served(tmp_path, connections_max=2) as everything, connected(everything) as held:
        held.sendall(asking)
        assert held.recv(4096).startswith(b"HTTP/1.1 100")
        assert everything.post(LIST, {})[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("elsewhere", [b"100"] * 4 + [b""] * 2),
        ("127.0.0.1", [b"100"] * 8 + [b"503"] * 2),
    ],
)
def test_one_address_beyond_loopback_has_half_of_the_connections(
    tmp_path: Path, first: str, told: list[bytes]
) -> None:
    """Of those that ask for something; the others have an address of this machine to themselves."""
    address = beyond_loopback() if first == "elsewhere" else first
    guarded: Any = {"address": "0.0.0.0:0", "keys": {"AKID": "right"}, "connections_max": 8}
    with served(tmp_path, **guarded) as everything, ExitStack() as held:
        port = int(everything.address.rpartition(":")[2])
        before = closed()
        assert [asked(held, address, port) for _ in told] == told
        assert closed() - before == told.count(b"")
        left = 8 - told.count(b"100")
        others = [b"100"] * left + [b"503"]
        assert [asked(held, "127.0.0.1", port) for _ in others] == others
        assert closed() - before == told.count(b"")


def asked(held: ExitStack, address: str, port: int) -> bytes:
    """The status that one more connection gets for a request that it does not end."""
    raw = held.enter_context(socket.create_connection((address, port), PATIENCE_SECONDS))
    with suppress(ConnectionError):
        raw.sendall(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        return raw.recv(4096)[9:12]
    return b""


def closed() -> float:
    """How many connections were one too many of an address."""
    labels = {"port": "dynamodb", "reason": "of_one_address"}
    return SERVE_REGISTRY.get_sample_value("penstock_connections_refused_total", labels) or 0.0


def beyond_loopback() -> str:
    """An address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address beyond loopback")
        return str(unsent.getsockname()[0])


def test_a_page_in_a_browser_cannot_reach_it_under_another_name(shared: Served) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(
            urllib.request.Request(
                f"http://{shared.address}/", b"{}", {"X-Amz-Target": LIST, "Host": "evil.example"}
            ),
            timeout=30,
        )
    with caught.value as error:
        assert error.code == 400


def test_two_do_not_listen_on_one_port(shared: Served, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="it is in use"),
        served(tmp_path, address=shared.address),
    ):
        pass


# --- signatures -----------------------------------------------------------------------------------


def client(everything: Served, *, key: str = "AKID", secret: str = "right") -> Any:
    return _boto3.client(
        "dynamodb",
        endpoint_url=f"http://{everything.address}",
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}),
    )


@pytest.mark.parametrize(
    ("key", "secret", "name"),
    [
        ("AKID", "wrong", "InvalidSignatureException"),
        ("OTHER", "right", "UnrecognizedClientException"),
    ],
)
def test_only_who_holds_a_key_is_served(tmp_path: Path, key: str, secret: str, name: str) -> None:
    with served(tmp_path, keys={"AKID": "right"}) as everything:
        assert client(everything).list_tables()["TableNames"] == []
        with pytest.raises(Exception, match=name) as caught:
            client(everything, key=key, secret=secret).list_tables()
        assert name_of(caught.value) == name
        assert everything.refused("ListTables")[0] == "MissingAuthenticationTokenException"
        status, body, _ = everything.post(LIST, {}, {"Authorization": "Basic eDp5"})
        assert (status, body["__type"].partition("#")[2], body["message"]) == (
            400,
            "MissingAuthenticationTokenException",
            "Request is missing Authentication Token",
        )


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("AWS4-HMAC-SHA256", ("Credential", "Signature", "SignedHeaders")),
        ("AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host", ("Signature",)),
    ],
)
def test_a_signature_that_is_not_whole_is_told_what_it_lacks(
    given: str, missing: tuple[str, ...]
) -> None:
    lacks = [f"Authorization header requires '{name}' parameter." for name in missing]
    dated = "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
    for headers, told in (({}, [*lacks, dated]), ({"x-amz-date": "x"}, lacks)):
        request = Sent(
            method="POST",
            path="/",
            query="",
            headers={"authorization": given, **headers},
            body=b"{}",
        )
        with pytest.raises(WireError) as caught:
            verify(request, {"AKID": "right"}, now_ms=0)
        assert caught.value.name == "IncompleteSignatureException"
        assert str(caught.value) == f"{' '.join(told)} Authorization={given}"


def test_a_compressed_body_is_signed_as_it_is_sent(tmp_path: Path) -> None:
    def compress(request: Any, **_: Any) -> None:
        request.data = gzip.compress(request.data)
        request.headers["Content-Encoding"] = "gzip"

    with served(tmp_path, keys={"AKID": "right"}) as everything:
        made = client(everything)
        made.meta.events.register("before-sign.dynamodb.*", compress)
        assert made.list_tables(Limit=5)["TableNames"] == []


def test_an_operation_that_is_not_known_is_not_told_to_who_holds_no_key(tmp_path: Path) -> None:
    with served(tmp_path, keys={"AKID": "right"}) as everything:
        _, body, _ = everything.post("DynamoDB_20120810.None", {})
        assert body["__type"].endswith("#MissingAuthenticationTokenException")


def sent(**changed: Any) -> Sent:
    """A request that botocore signed with the key AKID and the secret `right`."""
    request: Any = AWSRequest("POST", "http://localhost:8000/", {"X-Amz-Target": LIST}, b"{}")
    auth: Any = SigV4Auth(Credentials("AKID", "right"), "dynamodb", "us-east-1")
    auth.add_auth(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    facts: dict[str, Any] = {
        "method": "POST",
        "path": "/",
        "query": "",
        "headers": {"host": "localhost:8000", **headers},
        "body": b"{}",
    }
    added = changed.pop("headers", {})
    facts["headers"] |= added
    return Sent(**{**facts, **changed})


def now_ms(request: Sent) -> int:
    moment = datetime.strptime(request.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
    return int(moment.timestamp() * 1000)


def refused(request: Sent, *, seconds: int = 0) -> str:
    with pytest.raises(WireError) as caught:
        verify(request, {"AKID": "right"}, now_ms=now_ms(request) + seconds * 1000)
    return caught.value.name


def test_a_signature_covers_all_of_the_request() -> None:
    verify(sent(), {"AKID": "right"}, now_ms=now_ms(sent()))
    for changed in (
        {"body": b'{"Limit":1}'},
        {"method": "PUT"},
        {"path": "/other"},
        {"query": "a=b"},
        {"headers": {"x-amz-target": "DynamoDB_20120810.DeleteTable"}},
        {"headers": {"host": "other:8000"}},
    ):
        assert refused(sent(**changed)) == "InvalidSignatureException"


def test_a_signature_is_good_for_five_minutes() -> None:
    for seconds in (-299, 299):
        verify(sent(), {"AKID": "right"}, now_ms=now_ms(sent()) + seconds * 1000)
    for seconds in (-301, 301):
        assert refused(sent(), seconds=seconds) == "InvalidSignatureException"
    signed = sent()
    moment = signed.headers["x-amz-date"]
    with pytest.raises(WireError, match=rf"^Signature expired: {moment} is now earlier than \d+T"):
        verify(signed, {"AKID": "right"}, now_ms=now_ms(signed) + 301_000)
    early = (
        rf"^Signature not yet current: {moment} is still later than \d+T\d+Z \(\d+T\d+Z \+ 5 min"
    )
    with pytest.raises(WireError, match=early):
        verify(signed, {"AKID": "right"}, now_ms=now_ms(signed) - 301_000)


def test_a_signature_that_leaves_the_operation_out_is_none() -> None:
    request = sent()
    authorization = request.headers["authorization"].replace(";x-amz-target", "")
    assert refused(sent(headers={"authorization": authorization})) == (
        "IncompleteSignatureException"
    )


def test_without_keys_it_listens_on_loopback_only() -> None:
    with pytest.raises(ValidationError, match="reachable from other machines"):
        DynamoConfig.model_validate({"address": "0.0.0.0:8000"})
    DynamoConfig.model_validate({"address": "0.0.0.0:8000", "keys": {"AKID": "right"}})
    with pytest.raises(ValidationError, match="write host:port"):
        DynamoConfig.model_validate({"address": "localhost"})


def test_names_in_arns_and_records_are_those_of_the_configuration(tmp_path: Path) -> None:
    clock = SetClock()
    names: Any = {"region": "eu-central-1", "account": "123456789012"}
    with served(tmp_path, clock=clock, **names) as everything:
        table = everything.table()
        table.put_item(Item={"id": "k"})
        arn = everything.arn(table)
        assert arn.startswith(f"arn:aws:dynamodb:eu-central-1:123456789012:table/{table.name}/")
        (record,) = everything.records(arn)
        assert record["awsRegion"] == "eu-central-1"
        other = arn.partition("/stream/")[0].replace("eu-", "us-")
        assert everything.refused("DescribeTable", TableName=other)[0] == (
            "ResourceNotFoundException"
        )
