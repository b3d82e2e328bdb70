"""Sizes, rates and durations as people write them, and back.

Prefixes are what they say: ``GB`` is 10^9 bytes, ``GiB`` is 2^30, ``Gbit`` is 10^9 bits; ``b`` is a
bit and ``B`` a byte. A bare ``10G`` is refused because half of its readers think of bits and the
other half of bytes, a factor of eight that no later message would explain; for the same reason a
rate needs a unit, while a bare number is a count of bytes where a size is asked for and of seconds
where a duration is. All results are exact up to one rounding to whole bytes.
"""

from __future__ import annotations

import re
from fractions import Fraction

from swarm.errors import UsageError

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ/%]*)")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SCALES = _DECIMAL | {"K": 10**3} | _BINARY
_SECONDS = {
    "ms": Fraction(1, 1000), "": Fraction(1), "s": Fraction(1), "m": Fraction(60),
    "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400),
}  # fmt: skip

_SIZE_HINT = "write 256KiB, 1GB (10^9) or 1GiB (2^30)"
_RATE_HINT = "write 400Mbit/s or 1.25GB/s (G is 10^9, Gi is 2^30)"
_DURATION_HINT = "write 30s, 500ms, 5m or 2h; a bare number is seconds"
_PERCENT_HINT = "write 5%"

_LARGEST_BYTES = 2**63 - 1
"""What a file size can be; more is a typing error."""
_LONGEST_S = 10 * 365 * 86400
"""Ten years; longer is a typing error, and some clocks overflow."""


def parse_size(text: str) -> int:
    """Bytes > 0; raises UsageError."""
    number, unit = _split(text, "size", _SIZE_HINT)
    scale = 1 if unit == "" else _byte_scale(unit)
    if scale is None:
        raise _refused(text, "size", _bare_hint(unit, _SIZE_HINT))
    return _positive(number * scale, text, "size", _SIZE_HINT)


def parse_rate(text: str) -> int:
    """Bytes per second > 0; raises UsageError."""
    number, unit = _split(text, "rate", _RATE_HINT)
    per_second = _rate_scale(unit)
    if per_second is None:
        raise _refused(text, "rate", _bare_hint(unit, _RATE_HINT))
    return _positive(number * per_second, text, "rate", _RATE_HINT)


def parse_duration(text: str) -> float:
    """Seconds >= 0; raises UsageError."""
    number, unit = _split(text, "duration", _DURATION_HINT)
    if unit not in _SECONDS:
        raise _refused(text, "duration", _DURATION_HINT)
    seconds = number * _SECONDS[unit]
    if seconds > _LONGEST_S:
        raise UsageError(f"duration {text!r} is over ten years", hint=_DURATION_HINT)
    return float(seconds)


def parse_percent(text: str) -> float:
    """A share between 0 and 1, written in per cent (``5%``); raises UsageError."""
    number, unit = _split(text, "percentage", _PERCENT_HINT)
    if unit != "%" or number > 100:
        raise _refused(text, "percentage", _PERCENT_HINT)
    return float(number / 100)


def format_size(count: float) -> str:
    """Three significant digits with a decimal prefix: ``1.25 GB``."""
    value, prefix = float(count), ""
    for prefix in _DECIMAL:
        # 999.5 would print as 1000; it belongs to the next prefix.
        if value < 999.5 or prefix == "P":
            break
        value /= 1000
    if prefix == "":
        return f"{value:.0f} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {prefix}B"


def format_rate(bytes_per_s: float) -> str:
    """As `format_size`, a second: ``1.25 GB/s``."""
    return f"{format_size(bytes_per_s)}/s"


def format_duration(seconds: float) -> str:
    """Two units at most: ``4.2s``, ``3m 20s``, ``2h 05m``, ``3d 04h``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {second:02d}s"
    hours, minute = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minute:02d}m"
    return f"{hours // 24}d {hours % 24:02d}h"


def _split(text: str, what: str, hint: str) -> tuple[Fraction, str]:
    """The number and its unit."""
    stripped = text.strip()
    if stripped.startswith("-"):
        raise UsageError(f"{what} {text!r} is negative", hint=hint)
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise _refused(text, what, hint)
    return Fraction(match[1]), match[2]


def _byte_scale(unit: str) -> int | None:
    return _SCALES.get(unit[:-1]) if unit.endswith("B") else None


def _rate_scale(unit: str) -> Fraction | None:
    """Bytes per second in one `unit`; None if it is no unit of rate."""
    amount = unit.removesuffix("/s")
    if amount.endswith("bit"):
        # Nobody means milli: `tc` and friends write mbit.
        prefix = amount.removesuffix("bit")
        prefix = prefix if prefix in _SCALES else prefix[:1].upper() + prefix[1:]
    elif amount.endswith(("b", "bps")):
        prefix = amount.removesuffix("bps").removesuffix("b")
    else:
        scale = _byte_scale(amount)
        return None if scale is None else Fraction(scale)
    bits = _SCALES.get(prefix)
    return None if bits is None else Fraction(bits, 8)


def _positive(value: Fraction, text: str, what: str, hint: str) -> int:
    whole = round(value)
    if whole <= 0:
        raise UsageError(f"{what} {text!r} is not above zero", hint=hint)
    if whole > _LARGEST_BYTES:
        raise UsageError(f"{what} {text!r} is too large", hint=hint)
    return whole


def _bare_hint(unit: str, hint: str) -> str:
    if unit == "" or unit.removesuffix("i").upper() in _SCALES:
        return f"bit or byte? {hint}"
    return hint


def _refused(text: str, what: str, hint: str) -> UsageError:
    return UsageError(f"not a {what}: {text[:80]!r}", hint=hint)
