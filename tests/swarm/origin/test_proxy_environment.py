"""Which proxy the environment names, and for whom it does not count."""

from __future__ import annotations

import pytest

from swarm.errors import UsageError
from swarm.origin.proxy_environment import is_bypassed, proxy_for


@pytest.mark.parametrize(
    ("no_proxy", "is_exempt"),
    [
        ("", False),
        ("*", True),
        ("10.0.0.0/8", True),
        ("10.1.2.3", True),
        ("10.1.2.3:9000", True),
        ("10.1.2.3:9001", False),
        ("11.0.0.0/8, 10.1.0.0/16", True),
        ("10.1.2.30", False),
        ("1.2.3", False),
    ],
)
def test_addresses_are_exempt_by_address_and_network(no_proxy: str, is_exempt: bool) -> None:
    assert is_bypassed("10.1.2.3", 9000, no_proxy) is is_exempt


@pytest.mark.parametrize(
    ("no_proxy", "is_exempt"),
    [
        ("example.com", True),
        (".example.com", True),
        ("*.example.com", True),
        ("S3.Example.COM", True),
        ("ample.com", False),
        ("other.s3.example.com", False),
        ("example.com:443", True),
        ("example.com:80", False),
    ],
)
def test_names_are_exempt_with_what_lies_below(no_proxy: str, is_exempt: bool) -> None:
    assert is_bypassed("s3.example.com", 443, no_proxy) is is_exempt


def test_ipv6_networks_and_ports_are_understood() -> None:
    assert is_bypassed("fd00::1", 80, "fd00::/8")
    assert is_bypassed("[fd00::1]", 80, "[fd00::1]:80")
    assert not is_bypassed("fd00::1", 81, "[fd00::1]:80")


def test_the_proxy_is_chosen_by_scheme_and_lower_case_wins() -> None:
    environment = {"https_proxy": "http://a:1", "HTTPS_PROXY": "http://b:1", "ALL_PROXY": "c:2"}
    assert proxy_for("https", "host", 443, environment) == "http://a:1"
    assert proxy_for("http", "host", 80, environment) == "http://c:2"
    assert proxy_for("https", "host", 443, environment | {"NO_PROXY": "host"}) is None
    assert proxy_for("https", "host", 443, {}) is None


def test_a_cgi_process_ignores_what_its_client_can_set() -> None:
    assert proxy_for("http", "h", 80, {"HTTP_PROXY": "http://a", "REQUEST_METHOD": "GET"}) is None


def test_an_unknown_kind_of_proxy_is_refused_without_its_password() -> None:
    with pytest.raises(UsageError) as caught:
        proxy_for("https", "host", 443, {"https_proxy": "socks5://me:canary@proxy:1080"})
    assert "canary" not in caught.value.message
