"""What is reached without a proxy of the environment."""

import pytest

from penstock.proxies import for_delta, is_here, shown

VARIABLES = ("https_proxy", "http_proxy", "all_proxy", "no_proxy", "AWS_ENDPOINT_URL")
PROXY = "http://127.0.0.1:9"
HERE = {"AWS_ENDPOINT_URL": "http://localhost:9000", "AWS_REGION": "eu"}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "::1", "[::1]"]
)
def test_this_machine_is_here(host: str) -> None:
    assert is_here(host)


@pytest.mark.parametrize("host", ["", "10.0.0.1", "localhost.example.com", "1.0.0.127", "::2"])
def test_others_are_not(host: str) -> None:
    assert not is_here(host)


def test_a_proxy_is_shown_without_its_password() -> None:
    assert shown("http://me:secret@proxy.example.com:3128/x") == "http://proxy.example.com:3128"
    assert shown("socks5://[::1]") == "socks5://::1"


def test_an_object_store_is_left_out_of_the_proxy_only_where_it_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert for_delta(HERE) == HERE
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    assert for_delta(HERE) == {**HERE, "proxy_url": PROXY, "proxy_excludes": "localhost"}
    monkeypatch.setenv("no_proxy", ".example.com")
    past = {"proxy_url": PROXY, "proxy_excludes": "localhost,.example.com"}
    for name in ("endpoint", "aws_endpoint", "AWS_ENDPOINT_URL_S3", "azure_storage_endpoint"):
        one = {name: "http://localhost:9000"}
        assert for_delta(one) == {**one, **past}
    elsewhere = {"endpoint": "https://s3.example.com"}
    own = {**HERE, "Proxy_URL": "http://proxy.example.com:3128"}
    broken = {"endpoint": "http://[bad"}
    monkeypatch.setenv("ENDPOINT", "http://localhost:3000")  # of who knows whom
    for options in (elsewhere, own, broken, {}):
        assert for_delta(options) == options
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert for_delta({}) == past
    assert for_delta(elsewhere) == elsewhere, "an option goes before the environment"
