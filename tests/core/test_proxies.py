"""What is reached without a proxy of the environment."""

import pytest

from penstock.proxies import is_here, shown


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
