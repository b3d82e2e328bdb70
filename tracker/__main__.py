"""``swarm-tracker``: run a tracker.

Ends with 0 after SIGTERM or SIGINT once the requests in flight are answered; with the exit code of
the error's class when it cannot start (`swarm.errors`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import click

from swarm.errors import SwarmError, UsageError
from swarm.protocol.ids import Address, parse_address


class _JsonLines(logging.Formatter):
    """One JSON object a line, for collectors; used where nobody reads along."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """The tracker of a weight swarm: who holds which chunks, who may read the origin, which version
    a channel serves."""


@cli.command()
@click.option(
    "--listen", required=True, metavar="H:P", help="Address to serve; port 0 takes a free one."
)
@click.option("--store", required=True, metavar="URL", help="Hard state: sqlite:///ABSOLUTE/PATH.")
@click.option(
    "--cluster-key-file",
    type=click.Path(path_type=Path),
    help="Key shared with the agents (swarm keys new). Without it everybody is let in.",
)
@click.option(
    "--operator-token-file",
    type=click.Path(path_type=Path),
    help="Token that operators need. Without it the cluster key serves them too.",
)
@click.option(
    "--zone-copies",
    type=click.Choice(["peer", "origin", "auto"]),
    default="peer",
    show_default=True,
    help="Where agents lie in several zones, a chunk comes to each further one from a peer of "
    "another zone, or from the origin; auto takes the origin where it is S3, which within a region "
    "costs less than bytes between zones.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def serve(
    listen: str,
    store: str,
    cluster_key_file: Path | None,
    operator_token_file: Path | None,
    zone_copies: str,
    log_level: str,
) -> None:
    """Serve agents and operators until SIGTERM, then answer what is in flight and exit 0.

    Prints one line with its address when it is ready.
    """
    # Late, so that --help and usage errors are instant.
    import trio

    from tracker.config import ServeSettings, role_keys
    from tracker.policy.prices import ZoneCopies
    from tracker.server import serve as serve_tracker
    from tracker.store.sqlite import store_path

    _set_up_logging(log_level)
    settings = ServeSettings(
        listen=parse_address(listen),
        store=store_path(store),
        keys=role_keys(cluster_key_file, operator_token_file),
        zone_copies=ZoneCopies(zone_copies),
    )

    async def run() -> None:
        await serve_tracker(settings, announce=_announce)

    trio.run(run)


def _announce(address: Address) -> None:
    click.echo(f"swarm-tracker: serving on http://{address}")


def _set_up_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def main() -> None:
    """Run the command line; one line and one exit code for each class of error."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(UsageError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except SwarmError as error:
        hint = f" ({error.hint})" if error.hint else ""
        click.echo(f"swarm-tracker: {error.code}: {error.message}{hint}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
