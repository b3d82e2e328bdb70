"""How fast a host's network card is, as the kernel's traffic control understands it.

Both directions of a card are paced with a token bucket (`tbf`): what the host sends at its own end
of the cable, what it receives at the switch's end. The queue before each bucket holds 20 ms, as in
a switch with little buffer, so a sender that overruns sees loss and not seconds of delay.

A *flow cap* stands for clouds that pace each TCP connection (EC2: 5 Gbit/s outside a placement
group). It needs a class per connection: `htb` under the card's rate, with one class for each
destination and bucket of the receiver's port. A receiving peer opens its data connections itself,
from ports the kernel hands out two apart, so 16 buckets over four port bits keep a pair's first
sixteen connections apart. The kernels this runs on need only `tbf`, `htb`, `bfifo` and `u32` for
it; `netem`, `fq` and the flow classifier are often not built in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# At 64 Mbit/s this is 33 ms of data: four of the 64 KiB super-packets that TCP hands to a card.
BURST_BYTES = 256 * 1024
QUEUE_S = 0.020
# One super-packet has to fit a class's bucket, and a second one its queue.
FLOW_BURST_BYTES = 64 * 1024
FLOW_QUEUE_BYTES_MIN = 2 * FLOW_BURST_BYTES

# Four bits of the destination port above the lowest (connecting sockets get every other port).
FLOW_BUCKETS = 16
FLOW_PORT_MASK = 0x1E
# One destination per u32 hash table, whose number has three hexadecimal digits, below 0x800.
DESTINATIONS_MAX = 0x7FE


@dataclass(frozen=True, slots=True)
class Nic:
    """A host's card. `rate_mbit` holds for each direction, None for no limit; `flow_cap_mbit`
    limits each TCP connection that leaves the host."""

    rate_mbit: float | None = None
    flow_cap_mbit: float | None = None

    def __post_init__(self) -> None:
        for rate in (self.rate_mbit, self.flow_cap_mbit):
            if rate is not None and rate <= 0:
                raise ValueError(f"a rate is positive or None, not {rate}")
        if self.flow_cap_mbit is not None and self.rate_mbit is None:
            raise ValueError("a flow cap needs a card rate to share")


def received_commands(nic: Nic, device: str) -> list[str]:
    """`tc` batch lines for the switch's end of the cable: what the host receives."""
    return [_tbf(nic.rate_mbit, device)] if nic.rate_mbit is not None else []


def sent_commands(nic: Nic, device: str, destinations: Sequence[str]) -> list[str]:
    """`tc` batch lines for the host's end of the cable: what it sends."""
    if nic.rate_mbit is None:
        return []
    if nic.flow_cap_mbit is None:
        return [_tbf(nic.rate_mbit, device)]
    if len(destinations) > DESTINATIONS_MAX:
        raise ValueError(f"a flow cap serves at most {DESTINATIONS_MAX} hosts")
    cap = min(nic.flow_cap_mbit, nic.rate_mbit)
    return list(_flow_classes(nic.rate_mbit, cap, device, destinations))


def _tbf(rate_mbit: float, device: str) -> str:
    return (
        f"qdisc add dev {device} root tbf rate {_bits(rate_mbit)} "
        f"burst {BURST_BYTES} latency {round(QUEUE_S * 1e6)}us"
    )


def _flow_classes(
    rate_mbit: float, cap_mbit: float, device: str, destinations: Sequence[str]
) -> Iterator[str]:
    card, rest, first = 1, 2, 16
    yield f"qdisc add dev {device} root handle 1: htb default {rest}"
    yield _class(device, "1:", card, rate_mbit, rate_mbit, BURST_BYTES)
    yield _class(device, "1:1", rest, rate_mbit, rate_mbit, BURST_BYTES)
    # What a class is promised whatever the others do; together never more than the card.
    promised = rate_mbit / (len(destinations) * FLOW_BUCKETS)
    for number, address in enumerate(destinations):
        yield from _destination_filters(device, table=number + 1, address=address)
        for bucket in range(FLOW_BUCKETS):
            minor = first + number * FLOW_BUCKETS + bucket
            yield _class(device, "1:1", minor, min(promised, cap_mbit), cap_mbit, FLOW_BURST_BYTES)
            yield f"qdisc add dev {device} parent 1:{minor:x} bfifo limit {_flow_queue(cap_mbit)}"
            yield (
                f"filter add dev {device} parent 1: protocol {_family(address).protocol} prio 1 "
                f"u32 ht {number + 1:x}:{bucket:x}: match u32 0 0 flowid 1:{minor:x}"
            )


def _destination_filters(device: str, *, table: int, address: str) -> Iterator[str]:
    family = _family(address)
    head = f"filter add dev {device} parent 1: protocol {family.protocol} prio 1"
    yield f"{head} handle {table:x}: u32 divisor {FLOW_BUCKETS}"
    yield (
        f"{head} u32 ht 800:: match {family.word} dst {address}/{family.address_bits} "
        f"link {table:x}: hashkey mask {FLOW_PORT_MASK:#010x} at {family.ports_at}"
    )


def _class(
    device: str, parent: str, minor: int, rate_mbit: float, ceil_mbit: float, burst_bytes: int
) -> str:
    return (
        f"class add dev {device} parent {parent} classid 1:{minor:x} htb rate {_bits(rate_mbit)} "
        f"ceil {_bits(ceil_mbit)} burst {burst_bytes} cburst {burst_bytes} "
        f"quantum {FLOW_BURST_BYTES}"
    )


def _flow_queue(cap_mbit: float) -> int:
    return FLOW_QUEUE_BYTES_MIN + round(cap_mbit * 1e6 / 8 * QUEUE_S)


def _bits(rate_mbit: float) -> str:
    return f"{round(rate_mbit * 1e6)}bit"


@dataclass(frozen=True, slots=True)
class _Family:
    """Where u32 finds things in a packet. `ports_at` is the offset of the TCP ports, in bytes."""

    protocol: str
    word: str
    address_bits: int
    ports_at: int


_IPV4 = _Family(protocol="ip", word="ip", address_bits=32, ports_at=20)
_IPV6 = _Family(protocol="ipv6", word="ip6", address_bits=128, ports_at=40)


def _family(address: str) -> _Family:
    return _IPV6 if ":" in address else _IPV4
