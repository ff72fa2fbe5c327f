"""What a Zero source can be told."""

import pytest
from pydantic import ValidationError

from penstock.sources.zero.config import RESERVED
from tests.sources_zero.support import config

URL = "wss://host/changes/v0/stream"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("wss://host/changes/v1/stream?k=sesame", "version 1"),
        ("wss://host/?k=sesame", "another path"),
        ("postgres://host/changes/v0/stream?k=sesame", "begin with ws"),
        ("wss://host/changes/v0/stream?k=sesame#x", "behind #"),
        *((f"{URL}?k=sesame&{name}=x", name) for name in sorted(RESERVED)),
    ],
)
def test_a_url_of_another_path_or_with_our_parameters_is_refused(url: str, why: str) -> None:
    """And its keys of access are in no message (Z9)."""
    with pytest.raises(ValidationError, match=why) as refused:
        config(url)
    said = [error["msg"] for error in refused.value.errors()]
    assert "sesame" not in str(said)


def test_what_is_asked_keeps_the_urls_own_parameters() -> None:
    asked = config(f"{URL}?k=a%20b", app_id="shop", shard=2, publications=["p", "q"])
    address = asked.address(watermark="1s1", replica="01")
    assert address == (
        f"{URL}?k=a%20b&appID=shop&shardNum=2&publications=p&publications=q"
        "&lastWatermark=1s1&replicaVersion=01"
    )
    assert "k=" not in repr(asked)
    assert (
        config("http://host/changes/v0/stream")
        .address(watermark=None, replica="")
        .startswith("ws://host/")
    )


def test_zeros_own_tables_are_captured_only_where_they_are_included() -> None:
    scope = config(URL, app_id="shop").scope
    assert "public.item" in scope
    assert "shop_0.clients" not in scope
    assert "shop.permissions" not in scope
    assert "shop_0.clients" in config(URL, app_id="shop", include=["shop_0.*"]).scope
    assert "public.item" not in config(URL, exclude=["public.*"]).scope
