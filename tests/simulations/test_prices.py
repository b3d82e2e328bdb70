"""Prices have a currency and a unit, and a load's bill is usage times prices."""

from __future__ import annotations

import pytest

from simulations.cost import Cost, Usage, cost_document, cost_lines, money
from simulations.prices import (
    HOUR_S,
    MONTH_S,
    Price,
    Prices,
    per_byte,
    per_byte_s,
    per_gpu_s,
    per_request,
    read_prices,
)
from simulations.toml_table import Document
from swarm.errors import UsageError


def read(text: str) -> Prices:
    return read_prices(Document(f"[prices]\n{text}", "plan.toml").table().table("prices"))


def test_a_price_is_what_its_unit_says() -> None:
    assert per_request("0.0004 USD/1000 requests").amount == pytest.approx(4e-7)
    assert per_request("0.4 USD/1,000,000 requests").amount == pytest.approx(4e-7)
    assert per_request("1 EUR/request") == Price(1.0, "EUR")
    assert per_byte("0.02 USD/GB").amount == pytest.approx(2e-11)
    assert per_byte("0 USD/GB").amount == 0.0
    assert per_byte("1 USD/GiB").amount == pytest.approx(2**-30)
    assert per_byte_s("0.08 USD/GB-month").amount == pytest.approx(0.08e-9 / MONTH_S)
    assert per_gpu_s("2.50 USD/GPU-hour").amount == pytest.approx(2.5 / HOUR_S)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('origin_egress = "0.09"', "origin_egress: not such a price: '0.09'"),
        ("origin_egress = 0.09", "origin_egress: 0.09 has no unit"),
        ('origin_egress = "0.09 USD/G"', "not such a price"),
        ('origin_egress = "0.09 USD/Gbit"', "not such a price"),
        ('origin_egress = "0.09 dollars/GB"', "not such a price"),
        ('origin_egress = "-1 USD/GB"', "is negative"),
        ('origin_requests = "1 USD/0 requests"', "not such a price"),
        ('origin_requests = "1 USD/GB"', "not such a price"),
        ('gpu = "2.50 USD/hour"', "not such a price"),
        ('gpu = "2.50 USD/GPU"', "not such a price"),
        ("gpus_per_node = 0", "gpus_per_node: is 0, not between 1"),
        ('cross_zones = "0.02 USD/GB"', "unknown key"),
        ('gpu = "2 EUR/GPU-hour"', "origin_requests: is missing, and its default is not in EUR"),
    ],
)
def test_a_price_that_is_none_is_refused_with_key_and_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        read(line)
    assert refused.value.message.startswith("plan.toml:2: prices.") or "default" in message


def test_an_unknown_price_names_the_nearest_one() -> None:
    with pytest.raises(UsageError) as refused:
        read('cross_zones = "0.02 USD/GB"')
    assert "did you mean cross_zone?" in refused.value.hint


def test_two_currencies_do_not_add_up() -> None:
    whole = (
        'origin_requests = "0.0004 EUR/1000 requests"\norigin_egress = "0.05 EUR/GB"\n'
        'cross_zone = "0.01 EUR/GB"\ngpu = "2 EUR/GPU-hour"\n'
    )
    assert read(whole).currency == "EUR"
    with pytest.raises(UsageError, match=r"plan.toml:5: prices.gpu: is in USD, others are in EUR"):
        read(whole.replace("2 EUR", "2 USD"))


def test_the_default_is_dated_and_the_scenarios_own_prices_are_named_so() -> None:
    assert read("").dated == Prices().dated
    assert read('gpu = "3 USD/GPU-hour"').dated == "scenario"
    assert read('gpu = "3 USD/GPU-hour"\ndated = "2026-11"').dated == "2026-11"


def test_a_bill_is_usage_times_prices() -> None:
    usage = Usage(origin_requests=2e6, origin_bytes=140e9, cross_zone_bytes=280e9, node_s=7200.0)
    prices = Prices(per_origin_byte=0.09e-9, gpus_per_node=4)
    cost = Cost(usage, prices)
    assert cost.origin_requests == pytest.approx(0.8)
    assert cost.origin_egress == pytest.approx(12.6)
    assert cost.cross_zone == pytest.approx(5.6)
    assert cost.idle_gpu_s == 28800.0
    assert cost.idle_gpus == pytest.approx(20.0)
    assert cost_document(cost)["total"] == pytest.approx(39.0)
    said = "\n".join(cost_lines(cost))
    assert "39.00 USD a load" in said
    assert "280 GB between zones" in said
    assert "2h 00m x 4 GPUs" in said


def test_money_is_written_as_people_write_it() -> None:
    assert [money(amount) for amount in (0, 0.00042, 1.5, 999.994, 12345.6)] == [
        "0.00", "0.00042", "1.50", "999.99", "12,346",
    ]  # fmt: skip
