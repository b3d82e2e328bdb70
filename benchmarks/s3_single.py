"""One node alone, straight from S3: `swarm pull`, s5cmd and `aws s3 cp`, as whole commands.

    python -m benchmarks.s3_single [--size 1GiB] [--rounds 3] [--chunk-size 8MiB]
    python -m benchmarks.s3_single --reads [--size 256MiB] [--rounds 5]

All fetch the same files from the same server (SeaweedFS) at their defaults, ours without a tracker;
the files are compared with the source afterwards, ours have been verified before they were visible.
The commands take turns on memory touched a moment before; a first round warms up and is not
counted, and a line is the median of the others. Start-up counts. The server runs on the same cores,
so the rates are for comparison; `core_s_per_gb` and the memory are the client's alone. Our cost is
one part by the byte and one by the chunk, and a model of this size is cut into small ones (2 MiB);
`--chunk-size 8MiB` shows what one of 16 GB pays.

awscli and the project cannot share an environment (each pins botocore), so it gets one beside the
project's, `.venv-aws`, made at the first run; where that fails it is left out, with the reason.

`--reads` compares single reads within one process instead: see `benchmarks.s3_reads`.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from benchmarks import s3_reads
from benchmarks.command_meter import Cost, measure_command, touch_memory
from benchmarks.object_store import running_store
from benchmarks.race_s3 import s5cmd_program
from swarm.units import parse_size

BUCKET = "single"
PLAIN = f"s3://{BUCKET}/plain"
ORIGIN = f"s3://{BUCKET}/swarm"
FILE_COUNT = 4  # As a model of this size has; more would measure requests rather than bytes.
BLOCK_BYTES = 16 << 20
MIB = 1 << 20
COMMAND_TIMEOUT_S = 300.0
INSTALL_TIMEOUT_S = 300.0
SWARM = str(Path(sys.executable).with_name("swarm"))
AWS_ENVIRONMENT = Path(__file__).parent.parent / ".venv-aws"


@dataclass(frozen=True, slots=True)
class Line:
    """One system, measured: medians."""

    system: str
    seconds: float
    gb_per_s: float
    core_s_per_gb: float
    max_rss_mib: float
    # Of that, memory which is no page of a file.
    max_anonymous_mib: float


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs share."""

    root: Path
    source: Path
    size: int
    environment: Mapping[str, str]
    # System -> its command, which fetches the files into `target`.
    commands: Mapping[str, Sequence[str]]

    @property
    def target(self) -> Path:
        return self.root / "target"


def write_model(directory: Path, size: int) -> None:
    """`FILE_COUNT` files of random bytes, `size` in all."""
    directory.mkdir()
    for index in range(FILE_COUNT):
        left = size * (index + 1) // FILE_COUNT - size * index // FILE_COUNT
        with (directory / f"weights-{index + 1}.data").open("wb") as file:
            while left:
                left -= file.write(os.urandom(min(left, BLOCK_BYTES)))


def client_environment(root: Path, store_environment: Mapping[str, str]) -> dict[str, str]:
    """The store's, and nothing of this machine's settings, credentials or proxies."""
    # s5cmd reads one variable of its own name for the address of the server.
    endpoint = store_environment["AWS_ENDPOINT_URL"]
    own = {"PATH": os.environ["PATH"], "HOME": str(root), "S3_ENDPOINT_URL": endpoint}
    return {**store_environment, **own}


def prepare(
    root: Path,
    size: int,
    store_environment: Mapping[str, str],
    aws: str | None,
    publish_flags: Sequence[str],
) -> Ground:
    """Make the files, upload and publish them."""
    source = root / "source"
    write_model(source, size)
    environment = client_environment(root, store_environment)
    _call([s5cmd_program(), "--log", "error", "cp", f"{source}/", f"{PLAIN}/"], environment)
    publish = [SWARM, "publish", str(source), "--origin", ORIGIN, "--json", *publish_flags]
    version = str(json.loads(_call(publish, environment))["version"])
    target = str(root / "target")
    commands = {
        "swarm": [SWARM, "pull", version, target, "--origin", ORIGIN, "--json"],
        "s5cmd": [s5cmd_program(), "--log", "error", "cp", f"{PLAIN}/*", f"{target}/"],
    }
    if aws is not None:
        commands["aws"] = [aws, "s3", "cp", "--recursive", "--only-show-errors", PLAIN, target]
    return Ground(root, source, size, environment, commands)


def _call(argv: Sequence[str], environment: Mapping[str, str]) -> bytes:
    done = subprocess.run(
        argv, env=environment, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT_S, check=True
    )
    return done.stdout


def run_once(ground: Ground, system: str) -> Cost:
    """One run of one command, into an empty directory, its result compared with the source."""
    touch_memory(ground.root, ground.size)
    ground.target.mkdir()
    try:
        log = ground.root / f"{system}.log"
        argv = ground.commands[system]
        cost = measure_command(argv, ground.environment, log, timeout_s=COMMAND_TIMEOUT_S)
        check_copy(ground.source, ground.target)
    finally:
        shutil.rmtree(ground.target)
    return cost


def check_copy(source: Path, target: Path) -> None:
    """Every file of `source` lies in `target`, byte for byte; raises RuntimeError."""
    names = [path.name for path in source.iterdir()]
    _, different, missing = filecmp.cmpfiles(source, target, names, shallow=False)
    if different or missing:
        raise RuntimeError(f"not what was published: {sorted(different + missing)}")


def summarize(system: str, size: int, costs: Sequence[Cost]) -> Line:
    """The medians, each of its own."""

    def median(values: Iterable[float], digits: int) -> float:
        return round(statistics.median(values), digits)

    gigabytes = size / 1e9
    return Line(
        system,
        seconds=median((cost.seconds for cost in costs), 3),
        gb_per_s=median((gigabytes / cost.seconds for cost in costs), 3),
        core_s_per_gb=median((cost.cpu_s / gigabytes for cost in costs), 3),
        max_rss_mib=median((cost.rss_bytes_max / MIB for cost in costs), 1),
        max_anonymous_mib=median((cost.anonymous_bytes_max / MIB for cost in costs), 1),
    )


def compare(ground: Ground, rounds: int) -> list[Line]:
    """All systems, in turns."""
    found: dict[str, list[Cost]] = {system: [] for system in ground.commands}
    for number in range(rounds + 1):
        for system, costs in found.items():
            cost = run_once(ground, system)
            _say(f"round {number}: {system} {cost.seconds:.2f} s, {cost.cpu_s:.2f} core-s")
            if number:
                costs.append(cost)
    return [summarize(system, ground.size, costs) for system, costs in found.items()]


def aws_program(environment: Path) -> str | None:
    """awscli in an environment of its own, made if it is not there; None, with the reason on
    stderr, if it cannot be."""
    program = environment / "bin" / "aws"
    steps = [
        [sys.executable, "-m", "venv", str(environment)],
        [str(environment / "bin" / "pip"), "install", "--quiet", "awscli"],
        [str(program), "--version"],
    ]
    try:
        for argv in steps[2:] if program.exists() else steps:
            subprocess.run(
                argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=True
            )
    except subprocess.CalledProcessError as error:
        _say(f"without aws: {error}: {error.stderr.strip()[-500:]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"without aws: {error}")
    else:
        return str(program)
    return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Print a list of lines as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.s3_single")
    parser.add_argument("--size", type=parse_size)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--chunk-size", help="for publishing [default: by size]")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--reads", action="store_true", help="single reads within one process")
    parser.add_argument("--json", action="store_true", help="the only form there is")
    options = parser.parse_args()
    flags = ["--chunk-size", options.chunk_size] if options.chunk_size else []
    lines: Sequence[Line | s3_reads.Reading]
    with tempfile.TemporaryDirectory(prefix="s3-single-", dir=options.directory) as directory:
        root = Path(directory)
        with running_store(root / "store", BUCKET) as store:
            if options.reads:
                size, rounds = options.size or 256 * MIB, options.rounds or 5
                lines = trio.run(s3_reads.measure, store.endpoint, BUCKET, size, rounds)
            else:
                size, rounds = options.size or 1024 * MIB, options.rounds or 3
                aws = aws_program(AWS_ENVIRONMENT)
                ground = prepare(root, size, store.environment(), aws, flags)
                lines = compare(ground, rounds)
    print(json.dumps([asdict(line) for line in lines]))


if __name__ == "__main__":
    main()
