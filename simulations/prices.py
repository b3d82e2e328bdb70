"""What things cost: amounts of money per unit, read from a ``[prices]`` table or taken from a list.

A price is text with a currency and a unit, ``"0.01 USD/GB"`` or ``"0.0004 USD/1000 requests"``,
because a number alone could be per GB or GiB, per request or thousand. All prices of a file are in
one currency. G is 10^9.

**The default** is a list of early 2026 for one big cloud (US East, N. Virginia, on demand, without
discounts); whoever pays other prices writes them into the scenario.

* Origin requests: S3 Standard GET, 0.0004 USD a thousand (https://aws.amazon.com/s3/pricing/).
* Origin egress: free to machines of the same region (the same page); 0.02 USD/GB to another region
  and 0.09 USD/GB to the internet.
* Between zones: 0.01 USD/GB each way, so a byte that crosses costs 0.02 USD/GB
  (https://aws.amazon.com/ec2/pricing/on-demand/, "Data Transfer within the same AWS Region").
* GPU: 2.50 USD an hour, the low end of what H100s were offered for on demand in the first quarter
  of 2026 (https://digiterialabs.com/ai/insights/cloud-gpu-pricing-q1-2026: 2.49 to 2.85 from
  specialised providers, more from the large ones). A low price understates what waiting costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from simulations.toml_table import Table
from swarm.errors import UsageError
from swarm.units import parse_size
from tracker.policy.prices import TRANSFER_PRICES

PRICES_DATED = TRANSFER_PRICES.dated
"""Of the default list."""
HOUR_S = 3600.0
MONTH_S = 730 * HOUR_S
"""As clouds bill it: a twelfth of a year."""

_PRICE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Z]{3})\s*/\s*(.+)")
_SECONDS = {"second": 1.0, "hour": HOUR_S, "day": 24 * HOUR_S, "month": MONTH_S}


@dataclass(frozen=True, slots=True)
class Prices:
    """What a load is billed: per byte, request and second. `currency` holds for all."""

    currency: str = "USD"
    # When and where from; "scenario" if any was given there.
    dated: str = PRICES_DATED
    per_origin_request: float = TRANSFER_PRICES.per_origin_request
    per_origin_byte: float = 0.0
    per_cross_zone_byte: float = TRANSFER_PRICES.per_cross_zone_byte
    per_gpu_s: float = 2.5 / HOUR_S
    gpus_per_node: int = 8


@dataclass(frozen=True, slots=True)
class Price:
    """An amount for one unit of what it is for."""

    amount: float
    currency: str


def read_prices(table: Table) -> Prices:
    """The table's own prices over the default list; raises UsageError."""
    usual = Prices()
    purse = Purse(table)
    prices = Prices(
        per_origin_request=purse.price(
            "origin_requests", per_request, usual.per_origin_request, "0.0004 USD/1000 requests"
        ),
        per_origin_byte=purse.price(
            "origin_egress", per_byte, usual.per_origin_byte, "0.09 USD/GB"
        ),
        per_cross_zone_byte=purse.price(
            "cross_zone", per_byte, usual.per_cross_zone_byte, "0.02 USD/GB"
        ),
        per_gpu_s=purse.price("gpu", per_gpu_s, usual.per_gpu_s, "2.50 USD/GPU-hour"),
        gpus_per_node=table.count("gpus_per_node", usual.gpus_per_node),
        currency=purse.currency,
        dated=table.text("dated", "scenario" if table.is_written else usual.dated),
    )
    table.end()
    return prices


class Purse:
    """Reads prices from a table and sees that they share a currency.

    A table that states some prices in another currency than the default's has to state all that it
    is asked for: euros and dollars do not add up.
    """

    def __init__(self, table: Table, currency: str = "") -> None:
        self._table = table
        self._currency = currency
        self._defaulted: list[str] = []

    @property
    def currency(self) -> str:
        """Of the prices read so far; raises UsageError if defaults are in another one."""
        currency = self._currency or Prices().currency
        if self._defaulted and currency != Prices().currency:
            key = self._defaulted[0]
            raise self._table.fail(key, f"is missing, and its default is not in {currency}")
        return currency

    @property
    def foreign_defaults(self) -> list[str]:
        """Keys that were left to a default in another currency than the other prices."""
        if self._currency in ("", Prices().currency):
            return []
        return [self._table.path_of(key) for key in self._defaulted]

    def price(self, key: str, parse: Callable[[str], Price], default: float, example: str) -> float:
        if not self._table.has(key):
            self._defaulted.append(key)
            return self._table.quantity(key, default, lambda text: parse(text).amount, example)

        def amount(text: str) -> float:
            price = parse(text)
            if self._currency and price.currency != self._currency:
                raise UsageError(
                    f"is in {price.currency}, others are in {self._currency}",
                    hint="write all prices in one currency",
                )
            self._currency = price.currency
            return price.amount

        return self._table.quantity(key, default, amount, example)


def per_request(text: str) -> Price:
    """``0.0004 USD/1000 requests``, ``0.4 USD/1000000 requests`` or ``0.0000004 USD/request``."""
    amount, currency, unit = _split(text, "0.0004 USD/1000 requests")
    match = re.fullmatch(r"(?:([0-9]+)\s+requests|request)", unit.replace(",", ""))
    if match is None or match[1] == "0":
        raise _refused(text, "0.0004 USD/1000 requests")
    return Price(amount / int(match[1] or 1), currency)


def per_byte(text: str) -> Price:
    """``0.02 USD/GB``, ``USD/GiB`` or ``USD/TB``."""
    amount, currency, unit = _split(text, "0.02 USD/GB")
    return Price(amount / _bytes_of(unit, text, "0.02 USD/GB"), currency)


def per_byte_s(text: str) -> Price:
    """``0.08 USD/GB-month``: storage, for a byte and a second."""
    example = "0.08 USD/GB-month"
    amount, currency, unit = _split(text, example)
    size, dash, time = unit.rpartition("-")
    if not dash or time not in _SECONDS:
        raise _refused(text, example)
    return Price(amount / _bytes_of(size, text, example) / _SECONDS[time], currency)


def per_gpu_s(text: str) -> Price:
    """``2.50 USD/GPU-hour``."""
    amount, currency, unit = _split(text, "2.50 USD/GPU-hour")
    gpu, dash, time = unit.rpartition("-")
    if gpu != "GPU" or not dash or time not in _SECONDS:
        raise _refused(text, "2.50 USD/GPU-hour")
    return Price(amount / _SECONDS[time], currency)


def _split(text: str, example: str) -> tuple[float, str, str]:
    stripped = text.strip()
    if stripped.startswith("-"):
        raise UsageError(f"price {text!r} is negative", hint=f"write {example}")
    match = _PRICE.fullmatch(stripped)
    if match is None:
        raise _refused(text, example)
    return float(match[1]), match[2], match[3].strip()


def _bytes_of(unit: str, text: str, example: str) -> int:
    if not re.fullmatch(r"(?:[kKMGTP]i?)?B", unit):
        raise _refused(text, example)
    return parse_size(f"1{unit}")


def _refused(text: str, example: str) -> UsageError:
    return UsageError(f"not such a price: {text[:80]!r}", hint=f"write {example}")
