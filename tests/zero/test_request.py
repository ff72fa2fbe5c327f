"""What a client may ask for by its URL, and what it is told of what it may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.serve.zero.acks import Ack, parse_ack
from penstock.serve.zero.request import parse_request, refused_version
from penstock.serve.zero.watermarks import read_watermark, watermark_of
from penstock.zero.lexi import lexi_version


def test_both_dialects_name_a_shard_and_where_it_goes_on() -> None:
    """Z1."""
    shipped = parse_request(
        "apiKey=s&appID=zero&shardNum=1&publications=b&publications=a"
        "&lastWatermark=1rs&replicaVersion=01"
    )
    assert (shipped.shard.dialect, shipped.shard.schema) == ("shipped", "zero_1")
    assert (shipped.last, shipped.replica, shipped.publications) == (
        (1000, None),
        "01",
        ("a", "b"),
    )
    design = parse_request("shardID=s1&lastWatermark=0a&replicaVersion=anything&x=1&x=2")
    assert (design.shard.dialect, design.shard.schema) == ("design", "zero_s1")
    assert (design.last, design.replica) == ((10, None), "")
    assert parse_request("appID=zero&shardNum=0").last is None


@given(st.integers(1, 1 << 63), st.one_of(st.none(), st.integers(0, (1 << 32) - 1)))
def test_a_watermark_says_a_commit_and_what_proves_it(commit: int, check: int | None) -> None:
    told = watermark_of(commit, check)
    assert read_watermark(told) == (commit, check)
    assert watermark_of(commit, None) <= told < watermark_of(commit + 1, None)
    older = lexi_version(min(commit, 10**10 - 1))
    assert read_watermark(older) == (min(commit, 10**10 - 1), None)
    assert older < told


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("", "appID and shardNum"),
        ("appID=zero", "shardNum"),
        ("appID=Zero&shardNum=0", "appID"),
        ("appID=zero&shardNum=-1", "shardNum"),
        ("appID=zero&shardNum=01", "shardNum"),
        ("shardID=a/b", "shardID"),
        ("shardID=", "shardID"),
        ("shardID=a&appID=zero&shardNum=0", "two ways"),
        ("shardID=a&shardID=a", "more than once"),
        ("appID=zero&shardNum=0&lastWatermark=01", "belong together"),
        ("appID=zero&shardNum=0&replicaVersion=01", "belong together"),
        ("shardID=a&lastWatermark=0/000003E8", "LexiVersion"),
        ("shardID=a&lastWatermark=", "LexiVersion"),
        ("shardID=a&publications=a%20b", "publications"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_with_it(query: str, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        parse_request(query)


@given(st.text(max_size=40))
def test_whatever_a_url_says_it_is_a_request_or_refused_without_its_values(text: str) -> None:
    """Z9: an answer repeats nothing of a URL, which may hold a key."""
    try:
        parse_request(f"appID=zero&shardNum=0&apiKey=verysecret&lastWatermark={text}")
    except RequestError as error:
        assert "verysecret" not in str(error)  # noqa: PT017


def test_other_versions_are_refused_with_those_that_there_are() -> None:
    assert refused_version("/changes/v0/stream") is None
    for path in ("/changes/v1/stream", "/changes//stream", "/changes/v0x/stream"):
        assert "v0" in (refused_version(path) or "")
    assert "/changes/v0/stream" in (refused_version("/changes/v0/streams") or "")


@pytest.mark.parametrize(
    ("text", "ack"),
    [
        ('["ack",{"watermark":"0a"}]', Ack(10, of_rows=True)),
        ('["status",{"tag":"commit","commitTimeMs":1},{"watermark":"0a"}]', Ack(10, of_rows=True)),
        ('["status",{"ack":true},{"watermark":"0a"}]', Ack(10, of_rows=False)),
        ('["hello"]', None),
    ],
)
def test_both_forms_of_an_acknowledgement_are_understood(text: str, ack: Ack | None) -> None:
    """Z1."""
    assert parse_ack(text) == ack


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", '["ack"]', '["ack",{"watermark":1}]', '["status",{},{}]', "[["]
)
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it "):
        parse_ack(text)
