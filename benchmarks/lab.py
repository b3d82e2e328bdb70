"""A network of real hosts inside one machine: the lab in which systems are raced and tested.

Each host is a network namespace with one card, `eth0`, whose cable ends in a bridge; the bridge
lives in a namespace of its own, so the machine's own network is never touched, several labs may run
at once with equal addresses, and deleting the namespaces leaves nothing behind. Cards are paced as
`benchmarks.shaping` says.

    with Lab({"origin": Nic(64), "node": Nic(64)}) as lab:
        server = lab.start("origin", [...])
        lab.run("node", [...], timeout_s=10)
        print(lab.sent_bytes("origin"))

Leaving the block stops every process that was started in it, by its own id, and deletes the
namespaces. A lab whose own process was killed cannot do that; namespaces carry the process id of
their lab, and the next lab removes those of the dead.

Needs root and Debian's iproute2. Alternatives rejected: containers (an engine to install, and its
network is shaped with the same calls), one process with many loopback addresses (loopback cannot be
paced per host).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from benchmarks.shaping import Nic, received_commands, sent_commands

NAMESPACE_PATTERN = re.compile(r"^wl(\d+)-\d+-")
NAMESPACE_DIRECTORY = Path("/run/netns")
# The kernel's limit for a name in /run/netns is a file name's; ours keeps listings readable.
HOST_NAME_PATTERN = re.compile(r"^[a-z0-9]{1,16}$")
SWITCH = "switch"  # The namespace that holds the bridge; no host may have its name.
HOSTS_MAX = 250  # What one /24 of addresses holds; a race has a dozen.

COMMAND_TIMEOUT_S = 30.0  # One `ip` or `tc` batch; seen: 60 ms for 200 classes.
STOP_TIMEOUT_S = 5.0  # From SIGTERM to SIGKILL, for all processes together.

_SERIAL = itertools.count()

Stream = int | IO[bytes] | None


class LabError(Exception):
    """The machine cannot carry the lab; the message says what is missing."""


class Lab:
    """Hosts on one switch. Enter it to build, leave it to stop all its processes and remove it."""

    def __init__(self, hosts: Mapping[str, Nic], *, ip_version: Literal[4, 6] = 4) -> None:
        if not hosts or len(hosts) > HOSTS_MAX:
            raise ValueError(f"a lab has 1 to {HOSTS_MAX} hosts, not {len(hosts)}")
        for name in hosts:
            if not HOST_NAME_PATTERN.match(name) or name == SWITCH:
                raise ValueError(f"a host's name is 1-16 lower-case letters and digits: {name!r}")
        self.hosts = dict(hosts)
        prefix = "fd00:5a::" if ip_version == 6 else "10.77.0."
        self.addresses = {
            name: f"{prefix}{number:x}" if ip_version == 6 else f"{prefix}{number}"
            for number, name in enumerate(hosts, start=1)
        }
        self._prefix_bits = 64 if ip_version == 6 else 24
        self._tag = f"wl{os.getpid()}-{next(_SERIAL)}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        _check_machine()
        remove_dead_labs()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            stop_processes(self._processes)
        finally:
            self._remove()

    # ---- processes ----------------------------------------------------------------------------

    def start(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> subprocess.Popen[bytes]:
        """Starts `argv` on `host`; the returned process is `argv` itself, no wrapper around it."""
        process = subprocess.Popen(
            self.command(host, argv), env=env, stdin=stdin, stdout=stdout, stderr=stderr
        )
        self._processes.append(process)
        return process

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        check: bool = True,
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs `argv` on `host` to its end."""
        return subprocess.run(
            self.command(host, argv),
            env=env,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            check=check,
        )

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stops one process that `start` returned."""
        self._processes.remove(process)
        stop_processes([process])

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """`argv` as it has to be called from outside the lab. `ip` replaces itself with it, after
        mounting a /sys that shows the host's own card."""
        return ["ip", "netns", "exec", self.namespace(host), *argv]

    # ---- the network --------------------------------------------------------------------------

    def namespace(self, host: str) -> str:
        if host not in self.hosts:
            raise KeyError(f"the lab has no host {host!r}")
        return f"{self._tag}-{host}"

    def sent_bytes(self, host: str) -> int:
        """Bytes that left the host's card since the lab began, headers of frames included."""
        return self._counter(host, "tx")

    def received_bytes(self, host: str) -> int:
        return self._counter(host, "rx")

    def wire_bytes(self, host: str) -> tuple[int, int]:
        """(sent, received) by the host's shaped card as its token bucket counts them: every frame
        of a packet that the kernel carries whole has its headers. Raises KeyError for a host
        without a limit."""
        number = list(self.hosts).index(host)
        return (
            _shaped_bytes(self.namespace(host), "eth0"),
            _shaped_bytes(self._switch, f"port{number}"),
        )

    def connect(self, host: str) -> None:
        """Plugs the host's cable in again."""
        self._set_cable(host, "up")

    def disconnect(self, host: str) -> None:
        """Pulls the host's cable: nobody hears from it, no connection is closed."""
        self._set_cable(host, "down")

    def _set_cable(self, host: str, state: str) -> None:
        number = list(self.hosts).index(host)
        _ip(self._switch, [f"link set port{number} {state}"])

    def _counter(self, host: str, direction: Literal["tx", "rx"]) -> int:
        argv = ["ip", "-json", "-stats", "-n", self.namespace(host), "link", "show", "dev", "eth0"]
        (link,) = json.loads(_call(argv))
        return int(link["stats64"][direction]["bytes"])

    @property
    def _switch(self) -> str:
        return f"{self._tag}-{SWITCH}"

    def _build(self) -> None:
        _call(["ip", "netns", "add", self._switch])
        # Without multicast snooping IPv6 neighbours find each other before anyone has subscribed.
        _ip(
            self._switch,
            ["link add name bridge type bridge mcast_snooping 0", "link set bridge up"],
        )
        for number, (host, nic) in enumerate(self.hosts.items()):
            self._build_host(f"port{number}", host, nic)

    def _build_host(self, port: str, host: str, nic: Nic) -> None:
        namespace = self.namespace(host)
        _call(["ip", "netns", "add", namespace])
        _ip(
            self._switch,
            [
                f"link add {port} type veth peer name eth0 netns {namespace}",
                f"link set {port} master bridge up",
            ],
        )
        address = f"{self.addresses[host]}/{self._prefix_bits}"
        # nodad: an IPv6 address is usable at once, there is nobody to have a duplicate.
        flags = "nodad" if ":" in address else ""
        _ip(
            namespace,
            ["link set lo up", "link set eth0 up", f"address add {address} dev eth0 {flags}"],
        )
        others = [self.addresses[name] for name in self.hosts if name != host]
        _tc(self._switch, received_commands(nic, port))
        _tc(namespace, sent_commands(nic, "eth0", others))

    def _remove(self) -> None:
        for name in [*(self.namespace(host) for host in self.hosts), self._switch]:
            if (NAMESPACE_DIRECTORY / name).exists():
                _call(["ip", "netns", "delete", name])


def stop_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Asks all to end, waits, and kills what does not; by process id, never by name. Their pipes
    are closed."""
    processes = list(processes)
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for process in processes:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def remove_dead_labs() -> None:
    """Deletes the namespaces, and ends the processes in them, of labs whose own process is gone."""
    if not NAMESPACE_DIRECTORY.exists():
        return
    for name in sorted(os.listdir(NAMESPACE_DIRECTORY)):
        owner = NAMESPACE_PATTERN.match(name)
        if owner is None or Path(f"/proc/{owner.group(1)}").exists():
            continue
        for process_id in _call(["ip", "netns", "pids", name]).split():
            os.kill(int(process_id), signal.SIGKILL)
        _call(["ip", "netns", "delete", name])


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise LabError("network namespaces need root; run as root or with sudo")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise LabError(f"the program {program!r} is missing; apt-get install iproute2")


def _ip(namespace: str, lines: Sequence[str]) -> None:
    _call(["ip", "-n", namespace, "-batch", "-"], "\n".join(lines))


def _tc(namespace: str, lines: Sequence[str]) -> None:
    if lines:
        _call(["tc", "-n", namespace, "-batch", "-"], "\n".join(lines))


def _shaped_bytes(namespace: str, device: str) -> int:
    for qdisc in json.loads(_call(["tc", "-json", "-s", "-n", namespace, "qdisc", "show"])):
        if qdisc.get("dev") == device and qdisc["kind"] in ("tbf", "htb"):
            return int(qdisc["bytes"])
    raise KeyError(f"{device} is not shaped")


def _call(argv: Sequence[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        raise LabError(f"{' '.join(argv)} failed: {str(error.stderr).strip()}") from error
    return done.stdout
