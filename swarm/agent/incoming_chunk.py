"""One transfer on the worker side: its bytes go to the store, and one verdict comes back.

Every stripe ends exactly once, whole or broken, in its own lane, behind its last write. The last
one to end commits or aborts; so the verdict comes after every write, once, whatever happened
before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from swarm.errors import IntegrityError, SwarmError
from swarm.policy.events import FailureReason
from swarm.protocol.ids import ChunkIndex
from swarm.store.chunk_store import ChunkWriter, VersionStore


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the worker side ended. `failure` None means verified; the reason is LOST where stripes
    were missing, which the loop may know better."""

    failure: FailureReason | None
    error: SwarmError | None = None


class IncomingChunk:
    """Called in worker threads: `write` and `end_stripe`. `report` is called once, in a worker."""

    __slots__ = ("_chunk", "_error", "_is_broken", "_lock", "_report", "_store", "_stripes_left",
                 "_writer")  # fmt: skip

    def __init__(
        self,
        store: VersionStore,
        chunk: ChunkIndex,
        stripes: int,
        report: Callable[[Verdict], None],
    ) -> None:
        self._store = store
        self._chunk = chunk
        self._report = report
        self._lock = threading.Lock()
        self._stripes_left = stripes
        self._is_broken = False
        self._writer: ChunkWriter | None = None
        self._error: SwarmError | None = None

    def write(self, offset: int, payload: memoryview) -> None:
        """Bytes of one stripe. After a failure the rest is dropped: the verdict is known."""
        if self._error is not None:
            return
        try:
            self._open().write(offset, payload)
        except SwarmError as error:
            self._error = error

    def end_stripe(self, *, is_whole: bool) -> None:
        """No more bytes of this stripe."""
        with self._lock:
            self._is_broken |= not is_whole
            self._stripes_left -= 1
            is_last = self._stripes_left == 0
        if is_last:
            self._report(self._conclude())

    def _open(self) -> ChunkWriter:
        if self._writer is None:
            with self._lock:
                if self._writer is None:
                    self._writer = self._store.writer(self._chunk)
        return self._writer

    def _conclude(self) -> Verdict:
        if self._error is None and not self._is_broken:
            try:
                self._open().commit()
            except IntegrityError as error:
                return Verdict(FailureReason.CORRUPT, error)
            except SwarmError as error:
                self._error = error
            else:
                return Verdict(None)
        if self._writer is not None:
            self._writer.abort()
        if self._error is not None:
            return Verdict(FailureReason.LOCAL, self._error)
        return Verdict(FailureReason.LOST)
