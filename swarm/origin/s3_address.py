"""Where a bucket answers: endpoint, region and the style of its URLs.

Amazon's own endpoint gets virtual-host URLs (`bucket.s3.region.amazonaws.com`). Another endpoint
gets them too, as some stores demand, unless it is an address, `localhost`, a single label or a name
inside a cluster, none of which has wildcard DNS. A bucket with dots always gets path style, since a
wildcard certificate does not cover it. A profile's `s3.addressing_style` wins over all of this.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from swarm.errors import UsageError
from swarm.origin.aws_environment import AwsSettings
from swarm.origin.origin import shown_url

REGION_DEFAULT = "us-east-1"  # As every AWS tool assumes.
CLUSTER_SUFFIXES = (".local", ".svc", ".internal", ".localhost", ".lan")


@dataclass(frozen=True, slots=True)
class S3Address:
    """A bucket at an endpoint. Immutable: another region or style is another address."""

    bucket: str
    region: str
    # "" for Amazon's own; else scheme://host[:port][/path], no trailing slash.
    endpoint: str
    is_path_style: bool

    def url(self, key: str, query: str = "") -> str:
        """URL of an object, or of the bucket with key "". `query` is percent-encoded already.

        The path is encoded as a signature wants it: all but unreserved characters and slashes.
        """
        base = self.endpoint or f"https://s3.{self.region}.{_aws_domain(self.region)}"
        scheme, _, rest = base.partition("://")
        if self.is_path_style:
            place = f"{scheme}://{rest}/{self.bucket}"
        else:
            place = f"{scheme}://{self.bucket}.{rest}"
        path = "/" + quote(key, safe="/~") if key or not self.is_path_style else ""
        return place + path + ("?" + query if query else "")


def s3_address(bucket: str, settings: AwsSettings) -> S3Address:
    """The address of a bucket by what the environment says; raises UsageError."""
    endpoint = settings.endpoint.rstrip("/")
    parts = urlsplit(endpoint)
    if endpoint and not _is_endpoint(parts):
        raise UsageError(
            f"not an S3 endpoint: {shown_url(endpoint)!r}",
            hint="set AWS_ENDPOINT_URL_S3 to https://host or http://host:port",
        )
    return S3Address(
        bucket=bucket,
        region=settings.region or REGION_DEFAULT,
        endpoint=endpoint,
        is_path_style=_is_path_style(bucket, parts.hostname or "", settings.addressing_style),
    )


def _is_endpoint(parts: SplitResult) -> bool:
    try:
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:  # No number, or none of a port.
        return False
    return has_place and parts.scheme in ("http", "https") and not parts.query


def _is_path_style(bucket: str, host: str, style: str) -> bool:
    if style in ("path", "virtual"):
        return style == "path"
    return "." in bucket or bool(host and not _has_wildcard_names(host))


def _has_wildcard_names(host: str) -> bool:
    """Whether `bucket.host` can resolve."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." in host and not host.endswith(CLUSTER_SUFFIXES)
    return False


def _aws_domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
