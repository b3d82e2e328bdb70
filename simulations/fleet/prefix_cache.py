"""What is kept of prompts that begin alike: LRU within a size, each entry for a time.

An entry is the KV cache of the leading tokens under one name. Whole blocks only, as in vLLM: a hit
is cut down to blocks, and at least one token of a prompt is always computed, since the first token
of the answer comes out of it. Time to live counts from the last use. What a cache costs is its
bytes over time, so each entry is billed from its writing until it expires or is pushed out; the
bill is exact although expired entries are only looked for when somebody asks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    tokens: int
    used_at: float
    # From when on its present size is to be billed.
    billed_at: float


class PrefixCache:
    """One cache. `now` never runs backwards, so entries in the order of their use expire in it."""

    def __init__(
        self, *, tokens_max: float = math.inf, ttl_s: float = math.inf, block_tokens: int = 16
    ) -> None:
        self.tokens_max = tokens_max
        self.ttl_s = ttl_s
        self.block_tokens = block_tokens
        self.tokens = 0
        self._token_seconds = 0.0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, prefix: str) -> bool:
        return prefix in self._entries

    def look_up(self, prefix: str, prompt_tokens: int, prefix_tokens: int, *, now: float) -> int:
        """Leading tokens of a prompt that are here; counts as a use."""
        self._expire(now)
        entry = self._entries.get(prefix)
        if entry is None:
            return 0
        entry.used_at = now
        self._entries.move_to_end(prefix)
        known = min(entry.tokens, prefix_tokens or prompt_tokens, prompt_tokens - 1)
        return known // self.block_tokens * self.block_tokens

    def store(self, prefix: str, tokens: int, *, now: float) -> None:
        """Keep the first `tokens` under a name, whole blocks of them; the longest so far stays.

        What is larger than the cache is not kept.
        """
        self._expire(now)
        tokens = tokens // self.block_tokens * self.block_tokens
        if not 0 < tokens <= self.tokens_max:
            return
        entry = self._entries.setdefault(prefix, _Entry(0, now, now))
        if tokens > entry.tokens:
            self._bill(entry, now)
            self.tokens += tokens - entry.tokens
            entry.tokens = tokens
        entry.used_at = now
        self._entries.move_to_end(prefix)
        while self.tokens > self.tokens_max:
            self._drop(next(iter(self._entries)), now)

    def token_seconds(self, now: float) -> float:
        """Tokens held, over time, so far."""
        self._expire(now)
        held = sum(entry.tokens * (now - entry.billed_at) for entry in self._entries.values())
        return self._token_seconds + held

    def _expire(self, now: float) -> None:
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.used_at + self.ttl_s > now:
                return
            self._drop(name, entry.used_at + self.ttl_s)

    def _drop(self, name: str, at: float) -> None:
        entry = self._entries.pop(name)
        self._bill(entry, at)
        self.tokens -= entry.tokens

    def _bill(self, entry: _Entry, until: float) -> None:
        self._token_seconds += entry.tokens * (until - entry.billed_at)
        entry.billed_at = until
