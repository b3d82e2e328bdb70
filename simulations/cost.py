"""What a load costs: requests and bytes as they are billed, and GPUs that wait for weights.

Idle GPU-seconds are those between a node's start and its last verified chunk, times the GPUs of a
node: they are paid for and serve nobody. It is an upper bound where an engine already loads what is
there. The tracker's machine, disks and storage at the origin are not counted: they are the same
whatever moves the bytes, or small beside one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulations.measure import Outcome
from simulations.prices import Prices
from simulations.scenario import Scenario
from swarm.units import format_duration, format_size


@dataclass(frozen=True, slots=True)
class Usage:
    """What is billed for one load of the whole fleet."""

    origin_requests: float
    origin_bytes: float
    cross_zone_bytes: float
    # Sum over nodes of the seconds from start to done.
    node_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """In the currency of `prices`."""

    usage: Usage
    prices: Prices

    @property
    def origin_requests(self) -> float:
        return self.usage.origin_requests * self.prices.per_origin_request

    @property
    def origin_egress(self) -> float:
        return self.usage.origin_bytes * self.prices.per_origin_byte

    @property
    def cross_zone(self) -> float:
        return self.usage.cross_zone_bytes * self.prices.per_cross_zone_byte

    @property
    def idle_gpu_s(self) -> float:
        return self.usage.node_s * self.prices.gpus_per_node

    @property
    def idle_gpus(self) -> float:
        return self.idle_gpu_s * self.prices.per_gpu_s

    @property
    def total(self) -> float:
        return self.origin_requests + self.origin_egress + self.cross_zone + self.idle_gpus


def cost_of(scenario: Scenario, outcome: Outcome, prices: Prices) -> Cost:
    """Of a simulated load."""
    total = scenario.version.total_bytes
    usage = Usage(
        origin_requests=outcome.origin_requests,
        origin_bytes=outcome.origin_copies * total,
        cross_zone_bytes=outcome.cross_zone_copies * total,
        node_s=sum(outcome.seconds),
    )
    return Cost(usage, prices)


def cost_document(cost: Cost) -> dict[str, object]:
    return {
        "currency": cost.prices.currency,
        "prices_dated": cost.prices.dated,
        "total": cost.total,
        "idle_gpus": cost.idle_gpus,
        "idle_gpu_s": cost.idle_gpu_s,
        "origin_requests": cost.origin_requests,
        "origin_egress": cost.origin_egress,
        "cross_zone": cost.cross_zone,
    }


def cost_lines(cost: Cost) -> list[str]:
    usage, prices = cost.usage, cost.prices
    idle = f"{format_duration(usage.node_s)} x {prices.gpus_per_node} GPUs a node"
    rows = [
        (cost.idle_gpus, f"idle GPUs ({idle})"),
        (cost.origin_requests, f"{usage.origin_requests:.0f} origin requests"),
        (cost.origin_egress, f"{format_size(usage.origin_bytes)} of origin egress"),
    ]
    if usage.cross_zone_bytes:
        rows.append((cost.cross_zone, f"{format_size(usage.cross_zone_bytes)} between zones"))
    total = f"{money(cost.total)} {prices.currency} a load (prices: {prices.dated})"
    return [f"cost       {total}", *(f"  {money(amount):>9} {what}" for amount, what in rows)]


def money(amount: float) -> str:
    """Cents where they matter: ``0.0004``, ``12.34``, ``1,234``."""
    if amount >= 1000:
        return f"{amount:,.0f}"
    return f"{amount:.2f}" if amount >= 0.01 or amount == 0 else f"{amount:.2g}"
