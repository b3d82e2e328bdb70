"""How long one replica takes for its work: a roofline with its efficiencies stated as inputs.

**Memory.** What the engine may use of the GPUs, less the weights, is cut into KV blocks of
`block_tokens` tokens (PagedAttention: Kwon et al., SOSP 2023, arXiv:2309.06180). A token needs
2 · layers · kv_heads · head_size · bytes. A sequence takes whole blocks, so on average half a block
of it is waste; small blocks waste less and make longer tables, which costs time in each step.

**Prefill** computes a prompt at once. Each token takes 2 FLOPs per parameter and each pair of
tokens that look at each other 4 · layers · heads · head_size (Kaplan et al. 2020, arXiv:2001.08361,
table 1; Pope et al. 2022, arXiv:2211.05102). The linear layers take the longer of their
arithmetic and of reading the weights once (Williams et al. 2009, the roofline), attention comes on
top. Tokens found in a prefix cache are not computed; their KV is read from the cache first.

**Decode** gives every running sequence one token a step. The linear layers again take the longer of
arithmetic and reading the weights; attention reads all KV of all sequences, which is bound by
bandwidth at any batch, as it does about one operation per byte:

    step(b, K) = overhead + max(weights / bandwidth, 2 · P · b / FLOPs) + K · kv_bytes / bandwidth

with b sequences that hold K tokens. It is linear in K, and K grows by b a step, so n steps have a
closed form and a replica is simulated from change to change instead of from step to step.

`flops_share` and `bandwidth_share` are what is reached of the published peaks. Measured values lie
around 0.4 to 0.6 for prefill and 0.6 to 0.8 for reading weights (Pope et al. report 0.76 of peak
FLOPs at best for prefill); links between the GPUs of one replica are part of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one replica together."""

    # Published dense peak at the precision that is served, and bandwidth of the GPU memory, of all.
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    # What is reached of both.
    flops_share: float = 0.5
    bandwidth_share: float = 0.7
    # What the engine may use of the memory, and what activations and graphs take of that.
    memory_share: float = 0.9
    reserve_bytes: float = 0.0

    @property
    def usable_bytes(self) -> float:
        """For weights and KV blocks."""
        return self.memory_bytes * self.memory_share - self.reserve_bytes


@dataclass(frozen=True, slots=True)
class Model:
    """The network's shape, as its config.json has it."""

    # That take part in each token, and bytes of all of them.
    parameters: float
    weight_bytes: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    kv_element_bytes: float = 2.0

    @property
    def kv_bytes_per_token(self) -> float:
        return 2 * self.layers * self.kv_heads * self.head_size * self.kv_element_bytes

    @property
    def flops_per_pair(self) -> float:
        """Attention: one token that looks at one other."""
        return 4.0 * self.layers * self.heads * self.head_size


@dataclass(frozen=True, slots=True)
class Engine:
    """Settings of the serving engine, and what its own work costs."""

    block_tokens: int = 16
    sequences_max: int = 256
    prefill_tokens_max: int = 8192
    # Once a step: scheduling, launching, sampling.
    step_s: float = 0.0
    # Once a step for each block in use: building tables and following them.
    block_s: float = 0.0
    # Once a request, one after the other: parsing, tokenizing, answering.
    request_s: float = 0.0
    # None: requests join a running batch. Else a batch starts when `sequences_max` have come or
    # the first has waited so long, and nobody joins it.
    aggregate_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class CacheLink:
    """How KV of a prefix comes back from where it is kept; infinite: it never left the GPU."""

    bytes_per_s: float = math.inf
    latency_s: float = 0.0


class DoesNotFit(ValueError):
    """The weights leave no memory for KV blocks."""


class Serving:
    """Times and sizes of one replica. Holds no state."""

    def __init__(
        self, hardware: Hardware, model: Model, engine: Engine, link: CacheLink | None = None
    ) -> None:
        self.hardware, self.model, self.engine = hardware, model, engine
        self.link = link or CacheLink()
        self._flops_per_s = hardware.flops_per_s * hardware.flops_share
        self._bytes_per_s = hardware.bytes_per_s * hardware.bandwidth_share
        self.weights_s = model.weight_bytes / self._bytes_per_s
        self.token_s = 2 * model.parameters / self._flops_per_s
        self._pair_s = model.flops_per_pair / self._flops_per_s
        # Time of a step for each token in the cache: its bytes, and its part of a table entry.
        self.held_token_s = (
            model.kv_bytes_per_token / self._bytes_per_s + engine.block_s / engine.block_tokens
        )
        block_bytes = engine.block_tokens * model.kv_bytes_per_token
        usable = hardware.usable_bytes
        self.block_count = math.floor((usable - model.weight_bytes) / block_bytes)
        if self.block_count <= 0:
            raise DoesNotFit(
                f"weights of {model.weight_bytes / 1e9:.1f} GB leave no block of KV cache in "
                f"{usable / 1e9:.1f} GB that the engine may use"
            )

    # -- memory

    def blocks(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes."""
        return -(-tokens // self.engine.block_tokens)

    def concurrent(self, tokens: int) -> int:
        """Sequences of so many tokens each that run at once."""
        return min(self.block_count // self.blocks(tokens), self.engine.sequences_max)

    # -- time

    def prefill_s(self, requests: int, new_tokens: int, pairs: float, cached_tokens: int) -> float:
        """One prefill of so many requests at once, their cached tokens read before it.

        `pairs`: how often one of the new tokens looks at another or at a cached one.
        """
        linear_s = max(self.weights_s, new_tokens * self.token_s)
        engine = self.engine
        busy_s = engine.step_s + requests * engine.request_s
        return busy_s + linear_s + pairs * self._pair_s + self.fetch_s(cached_tokens)

    def fetch_s(self, cached_tokens: int) -> float:
        if not cached_tokens:
            return 0.0
        read = cached_tokens * self.model.kv_bytes_per_token
        return self.link.latency_s + read / self.link.bytes_per_s

    def step_s(self, sequences: int, held_tokens: float) -> float:
        """One step: see the module's docstring."""
        return self.base_step_s(sequences) + held_tokens * self.held_token_s

    def base_step_s(self, sequences: int) -> float:
        """The part of a step that does not depend on how long the sequences are."""
        tables_s = sequences * self.engine.block_s / 2
        return self.engine.step_s + tables_s + max(self.weights_s, sequences * self.token_s)

    def steps_s(self, steps: int, sequences: int, held_tokens: int) -> float:
        """So many steps on end; held tokens grow by one for each sequence and step."""
        grown = steps * held_tokens + sequences * (steps * (steps - 1) // 2)
        return steps * self.base_step_s(sequences) + grown * self.held_token_s

    def steps_within(self, elapsed_s: float, sequences: int, held_tokens: int) -> int:
        """The least number of steps that takes `elapsed_s` or longer."""
        base_s, slope = self.base_step_s(sequences), self.held_token_s
        square = slope * sequences / 2
        linear = base_s + slope * held_tokens - square
        if square > 0:
            root = (math.sqrt(linear * linear + 4 * square * elapsed_s) - linear) / (2 * square)
        else:
            root = elapsed_s / linear
        # The root is exact up to rounding; the two neighbours decide.
        steps = max(math.floor(root), 0)
        while self.steps_s(steps, sequences, held_tokens) < elapsed_s:
            steps += 1
        return steps


def attention_pairs(new_tokens: int, cached_tokens: int) -> float:
    """Each new token looks at all cached ones, at those before it and at itself."""
    return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
