"""One S3 request up to the head of its answer, with three things that are worth sending it again.

A store may answer that the region is another one (`x-amz-bucket-region`), that the clock is wrong
(its own `Date` says by how much) or that the credentials are rejected (others may be there by now).
Each is corrected once for the life of the session or the request and the request is sent again, at
most `REQUESTS_MAX` times in all. Everything else is an error for the caller, whose message never
holds what the store sent beyond its one-word code: S3 repeats keys and signatures in its errors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import trio

from swarm.errors import AuthError, NotFoundError, OriginError, SwarmError
from swarm.origin.answers import parse_date, status_error
from swarm.origin.aws_environment import CredentialTriple
from swarm.origin.credentials import CredentialSource
from swarm.origin.exchange import Exchange, is_name_unknown
from swarm.origin.origin import OriginSettings
from swarm.origin.request import OriginRequest
from swarm.origin.s3_address import S3Address, s3_address
from swarm.origin.s3_signing import signed_headers
from swarm.origin.transport import OriginTransport, Reply

REQUESTS_MAX = 3
CLOCK_TOLERANCE_S = 60.0  # S3 accepts 15 minutes; a smaller difference is not what is wrong.
CORRECTABLE = frozenset({301, 307, 400, 401, 403})  # Statuses that may mean one of the three.
EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
REJECTED_CODES = EXPIRED_CODES | {"InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
SKEW_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
REGION_CODES = frozenset(
    {
        "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    }
)  # fmt: skip
THROTTLE_CODES = frozenset({"SlowDown", "RequestLimitExceeded", "TooManyRequests"})
TRANSIENT_CODES = frozenset({"RequestTimeout", "OperationAborted", "InternalError"})


class S3Session:
    """Signs and sends the requests of one bucket. Owned by one `S3Origin`."""

    def __init__(self, bucket: str, settings: OriginSettings) -> None:
        self.settings = settings
        self._bucket = bucket
        self._credentials = CredentialSource()
        self._lock = trio.Lock()
        self._exchange: Exchange | None = None
        self._address: S3Address | None = None
        # Seconds that the store's clock is ahead of ours, once it has complained.
        self._clock_offset_s = 0.0

    async def exchange(self) -> Exchange:
        """The connections; opened at first use, when the environment has been read."""
        if self._exchange is None:
            async with self._lock:
                await self._open()
        assert self._exchange is not None
        return self._exchange

    async def prepare(self) -> None:
        """Open the exchange and sign once; raises AuthError."""
        await self.exchange()
        if not self.settings.is_anonymous:
            triple = await self._credentials.current()
            self._request("GET", "", "", {}, 0, triple)

    async def send(
        self,
        method: str,
        key: str,
        *,
        shown: str,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        first_byte_timeout_s: float | None = None,
    ) -> Reply:
        """The reply to a request, successful or not, its body unread; the caller closes it.

        Raises OriginError for what happens below HTTP, and AuthError, when there are no
        credentials.
        """
        exchange = await self.exchange()
        for request_count in range(1, REQUESTS_MAX + 1):
            triple = None if self.settings.is_anonymous else await self._credentials.current()
            request = self._request(method, key, query, headers or {}, len(body), triple)
            try:
                reply = await exchange.start(
                    request, shown, body=body, first_byte_timeout_s=first_byte_timeout_s
                )
            except OriginError as error:
                if request_count < REQUESTS_MAX and self._use_path_style(error):
                    continue
                raise
            if reply.status_code not in CORRECTABLE or request_count == REQUESTS_MAX:
                return reply
            body = await exchange.read_rest(reply, shown)
            if not await self._correct(reply, body, triple):
                # Read once more by the caller, for the error.
                return Reply(reply.status_code, reply.headers, kept=body)
        raise AssertionError("the last request returns")

    async def error(self, reply: Reply, shown: str) -> SwarmError:
        """What an unsuccessful reply means; closes it."""
        exchange = await self.exchange()
        body = await exchange.read_rest(reply, shown)
        code = _code(body)
        status = reply.status_code
        if status in (301, 307, 308) or code in REGION_CODES:
            return self._region_error(reply, body)
        if code in EXPIRED_CODES:
            return AuthError(
                f"{shown}: the AWS credentials have expired ({status} {code})",
                object_name=shown,
                hint="renew them; a role or profile is renewed without a restart",
            )
        if code in SKEW_CODES:
            minutes = abs(_clock_difference_s(reply)) / 60
            return AuthError(
                f"{shown}: this computer's clock differs by ~{minutes:.0f} min from the store's "
                f"({status} {code})",
                object_name=shown,
                hint="set the clock (NTP)",
            )
        if code == "NoSuchBucket":
            return NotFoundError(
                f"bucket {self._bucket!r} does not exist ({status} {code})",
                object_name=self._bucket,
                hint="check the name and the endpoint",
            )
        if code in REJECTED_CODES:
            return status_error(403, reply.headers, shown, code)
        if code in THROTTLE_CODES:
            return status_error(503, reply.headers, shown, code)
        if code in TRANSIENT_CODES:
            return status_error(500, reply.headers, shown, code)
        return status_error(status, reply.headers, shown, code)

    async def discard(self, reply: Reply, shown: str) -> None:
        """Read what is left of a small answer, so that its connection can be used again."""
        await (await self.exchange()).read_rest(reply, shown)

    async def aclose(self) -> None:
        if self._exchange is not None:
            await self._exchange.aclose()

    async def _open(self) -> None:
        if self._exchange is None:
            aws = await self._credentials.settings()
            self._address = s3_address(self._bucket, aws)
            transport = OriginTransport(self.settings, ca_bundle=aws.ca_bundle)
            self._exchange = Exchange(self.settings, transport)

    def _request(
        self,
        method: str,
        key: str,
        query: str,
        headers: dict[str, str],
        body_bytes: int,
        triple: CredentialTriple | None,
    ) -> OriginRequest:
        assert self._address is not None
        url = self._address.url(key, query)
        complete = dict(headers)
        if self.settings.is_requester_pays:
            complete["x-amz-request-payer"] = "requester"
        if triple is not None:
            complete = signed_headers(
                method,
                url,
                complete,
                triple,
                region=self._address.region,
                clock_offset_s=self._clock_offset_s,
            )
        complete |= {"Accept-Encoding": "identity", "User-Agent": "weightswarm"}
        if method in ("PUT", "POST"):
            complete["Content-Length"] = str(body_bytes)
        return OriginRequest.to(method, url, complete)

    async def _correct(self, reply: Reply, body: bytes, triple: CredentialTriple | None) -> bool:
        """Whether something was corrected, so that the request is worth sending again."""
        code = _code(body)
        if self._use_region(_told_region(reply, body)):
            return True
        is_clock_suspect = code in SKEW_CODES or (not code and reply.status_code == 403)
        if is_clock_suspect and self._use_clock(_clock_difference_s(reply)):
            return True
        is_rejected = not code or code in REJECTED_CODES or reply.status_code in (401, 403)
        return triple is not None and is_rejected and await self._credentials.replace(triple)

    def _use_region(self, region: str) -> bool:
        assert self._address is not None
        if region in ("", self._address.region):
            return False
        self._address = replace(self._address, region=region)
        return True

    def _use_clock(self, difference_s: float) -> bool:
        """Sign by the store's clock, if that is news."""
        if abs(difference_s - self._clock_offset_s) < CLOCK_TOLERANCE_S:
            return False
        self._clock_offset_s = difference_s
        return True

    def _use_path_style(self, error: OriginError) -> bool:
        """After a name that does not resolve: the endpoint has no names for its buckets."""
        address = self._address
        assert address is not None
        if address.is_path_style or not address.endpoint or not is_name_unknown(error):
            return False
        self._address = replace(address, is_path_style=True)
        return True

    def _region_error(self, reply: Reply, body: bytes) -> OriginError:
        assert self._address is not None
        told = _told_region(reply, body)
        return OriginError(
            f"bucket {self._bucket!r} does not answer for region {self._address.region!r} "
            f"({reply.status_code}); "
            + (f"it names region {told!r}" if told else "it names no other region"),
            object_name=self._bucket,
            hint="set AWS_REGION to the bucket's region, and AWS_ENDPOINT_URL_S3 only if it is not "
            "at Amazon",
            is_retryable=False,
        )


def _code(body: bytes) -> str:
    """The store's word for an error, "" if it has none."""
    match = re.search(rb"<Code>([A-Za-z0-9.]{1,64})</Code>", body)
    return match[1].decode("ascii") if match else ""


def _told_region(reply: Reply, body: bytes) -> str:
    """The region that an answer about a wrong region names, else ""."""
    if reply.status_code not in (301, 307, 400):
        return ""
    told = reply.headers.get("x-amz-bucket-region", "")
    if not told and (match := re.search(rb"<Region>([a-z0-9-]{1,32})</Region>", body)):
        told = match[1].decode("ascii")
    return told if re.fullmatch(r"[a-z0-9-]{1,32}", told) else ""


def _clock_difference_s(reply: Reply) -> float:
    """Seconds that the store's clock is ahead of ours; 0 if it does not say."""
    date = parse_date(reply.headers.get("date", ""))
    return 0.0 if date is None else (date - datetime.now(UTC)).total_seconds()
