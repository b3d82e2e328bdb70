"""Publishes in a process of its own, which a test can limit, kill and measure.

``python -m tests.support.publish_process DIR ORIGIN [KILL_AT]`` prints one JSON object. With
`KILL_AT`, a fraction of the upload, it kills itself there, without a chance to clean up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import trio

from swarm.origin.origin import open_origin
from swarm.publish.publish import publish
from swarm.publish.record import Phase, PublishOptions, PublishProgress, PublishResult

_FD_SAMPLE_S = 0.02


class OpenFiles:
    """The most descriptors that were open at one time, as far as sampling sees."""

    def __init__(self) -> None:
        self.most = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, len(os.listdir("/proc/self/fd")))
            time.sleep(_FD_SAMPLE_S)


def _peak_rss_bytes() -> int:
    """Of this program. `ru_maxrss` begins with the memory of the process that started it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM in /proc/self/status")


def main(directory: str, origin_url: str, kill_at: float) -> None:
    open_files = OpenFiles()
    result = trio.run(_publish, directory, origin_url, kill_at)
    outcome = {
        "version": result.version.hex(),
        "files": result.files,
        "uploaded_bytes": result.uploaded_bytes,
        "reused_bytes": result.reused_bytes,
        "seconds": result.seconds,
        "rss_bytes": _peak_rss_bytes(),
        "open_files": open_files.most,
    }
    print(json.dumps(outcome))


async def _publish(directory: str, origin_url: str, kill_at: float) -> PublishResult:
    def report(progress: PublishProgress) -> None:
        is_there = progress.done_bytes >= kill_at * progress.total_bytes
        if progress.phase is Phase.UPLOAD and progress.total_bytes and is_there:
            os.kill(os.getpid(), signal.SIGKILL)

    origin = open_origin(origin_url)
    try:
        return await publish(directory, origin, PublishOptions(), report)
    finally:
        await origin.aclose()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 2.0)
