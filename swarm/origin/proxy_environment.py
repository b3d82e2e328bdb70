"""Which proxy stands before an origin, by the environment variables that everybody uses.

`HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` name one, `NO_PROXY` takes hosts out: `*`, a name (and
what lies below it, with or without a leading dot), an address, a network (`10.0.0.0/8`), each with
an optional `:port`. Lower case wins over upper case. `HTTP_PROXY` in upper case is ignored in a CGI
process, where the client of the server could set it.

Only origins ask; peers and the tracker are always spoken to directly.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from swarm.errors import UsageError
from swarm.origin.origin import shown_url


def proxy_for(scheme: str, host: str, port: int, environment: Mapping[str, str]) -> str | None:
    """URL of the proxy for a host, or None; raises UsageError if it is no HTTP proxy."""
    found = _variable(environment, f"{scheme}_proxy") or _variable(environment, "all_proxy")
    if not found or is_bypassed(host, port, _variable(environment, "no_proxy")):
        return None
    url = found if "://" in found else f"http://{found}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"cannot use the proxy {shown_url(url)!r}: only http:// and https:// proxies are known",
            hint=f"change {scheme.upper()}_PROXY, or exempt {host} with NO_PROXY",
        )
    return url


def is_bypassed(host: str, port: int, no_proxy: str) -> bool:
    """Whether a `NO_PROXY` value exempts a host."""
    host = host.lower().strip("[]").rstrip(".")
    return any(
        _covers(entry, host, port) for entry in no_proxy.lower().replace(" ", ",").split(",")
    )


def _covers(entry: str, host: str, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    name, colon, digits = entry.rpartition(":")
    if colon and digits.isdecimal() and (":" not in name or name.endswith("]")):
        if int(digits) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    domain = entry.lstrip("*").lstrip(".")
    return bool(domain) and (host == domain or host.endswith("." + domain))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _variable(environment: Mapping[str, str], name: str) -> str:
    if name == "http_proxy" and "REQUEST_METHOD" in environment:
        return environment.get(name, "")
    return environment.get(name, "") or environment.get(name.upper(), "")
