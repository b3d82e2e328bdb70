"""SIGINT and SIGTERM: the first asks to stop, the second stops.

One handler serves a command for its whole life. In plain code the first signal raises
`Interrupted`; under trio it cancels the command, whose clean-up (Bye, leases returned, partial
state kept for resuming) then has `grace_s`. The second signal, or the end of that grace, ends the
process at once and from inside the handler, so that neither a busy loop nor a thread that cannot be
cancelled can hold it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

GRACE_S = 4.0
"""An interrupted command ends within five seconds; one is left to leave."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal asked this command to stop; the exit code is 128 + its number.

    No KeyboardInterrupt, which libraries take for a key that a person pressed.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Interrupts:
    """Watches the signals of one process; made once, by `main`."""

    def __init__(self) -> None:
        # The first signal received.
        self.received: int | None = None
        # Run on the first signal in place of raising; set while trio runs.
        self._cancel: Callable[[], None] | None = None
        self._grace_s = GRACE_S

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the signals inside; the former handlers come back afterwards, unless one came."""
        former = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            # Once one came, the process only ends: a further one must not change its exit code,
            # neither here nor while the interpreter finishes, where no handler of ours runs.
            is_ending = self.received is not None
            for number, handler in former.items():
                signal.signal(number, signal.SIG_IGN if is_ending else handler)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def run(self, main: Callable[[], Awaitable[T]], *, grace_s: float = GRACE_S) -> T:
        """Run `main` under trio; raises Interrupted if a signal came, whatever `main` made of the
        cancellation."""
        import trio  # 0.1 s of import that commands without network do not pay.

        results: list[T] = []

        async def cancellable() -> None:
            token = trio.lowlevel.current_trio_token()
            with trio.CancelScope() as scope:
                self._cancel = lambda: token.run_sync_soon(scope.cancel)
                if self.received is None:
                    results.append(await main())

        self._grace_s = grace_s
        # Trio's own start and end must not be torn by an exception from a signal handler.
        self._cancel = _do_nothing
        try:
            trio.run(cancellable)
        except BaseException as error:
            if self.received is not None:
                raise Interrupted(self.received) from error
            raise
        finally:
            self._cancel = None
        if self.received is not None:
            raise Interrupted(self.received)
        return results[0]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + self.received)
        self.received = number
        signal.signal(signal.SIGALRM, self._on_signal)
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        if self._cancel is None:
            raise Interrupted(number)
        self._cancel()


def _do_nothing() -> None:
    """The signal is remembered and looked at a moment later."""
