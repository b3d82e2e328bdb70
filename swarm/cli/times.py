"""Instants as people read them."""

from __future__ import annotations

import time


def shown_time(seconds: float) -> str:
    """``2026-11-30 18:19:05Z``: UTC, because the reader and the tracker may be far apart."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
