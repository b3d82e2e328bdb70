"""Logs of a long-running command: for people on a terminal, JSON lines everywhere else.

One JSON object a line is what log collectors read without being told; ``message`` is one line
whatever was logged, and URLs have lost their query on the way, as in errors.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from swarm.cli.failures import without_secrets

LEVELS = ("debug", "info", "warning", "error")

_CHATTY = ("httpx", "httpcore", "botocore", "urllib3")
"""Libraries whose INFO is our DEBUG, and whose DEBUG shows headers: credentials among them."""


def start_logging(level: str) -> None:
    """Log to stderr from now on."""
    handler = StderrHandler()
    handler.setFormatter(TerminalFormatter() if sys.stderr.isatty() else JsonLineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class StderrHandler(logging.Handler):
    """Writes to what `sys.stderr` is at the moment: a live bar takes its place while it is drawn,
    and prints lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


class JsonLineFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message"[, "traceback"]}``."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if record.exc_info:
            document["traceback"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(document, ensure_ascii=False)


class TerminalFormatter(logging.Formatter):
    """``12:34:56 warning: what``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))
