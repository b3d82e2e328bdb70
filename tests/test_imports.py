"""The rooms of the project, who may import whom, and what a pure room may not touch.

The tables below are the rules; the rest of the file walks the syntax tree of every source file and
compares. A room is a package or a module; a file belongs to the longest room name that fits it. A
room may always import itself. What is not listed is forbidden, so a new room has to be added here
before it can import anything of ours.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
OUR_PACKAGES = ("swarm", "tracker", "simulations", "benchmarks", "tests")

# Words that every room may use: the error classes and the parsing of sizes and rates.
VOCABULARY = frozenset({"swarm.errors", "swarm.units"})

# protocol <- policy <- shells <- cli. A shell imports another shell only where the table says so.
ARROWS: dict[str, frozenset[str]] = {
    "swarm": frozenset(),
    "swarm.errors": frozenset(),
    "swarm.units": VOCABULARY,
    "swarm.protocol": VOCABULARY,
    "swarm.policy": VOCABULARY | {"swarm.protocol"},
    "swarm.capacity": VOCABULARY | {"swarm.protocol", "swarm.policy"},
    "swarm.http": VOCABULARY,
    "swarm.config": VOCABULARY | {"swarm.protocol"},
    "swarm.store": VOCABULARY | {"swarm.protocol", "swarm.policy"},
    "swarm.origin": VOCABULARY | {"swarm.protocol", "swarm.policy"},
    "swarm.publish": VOCABULARY | {"swarm.protocol", "swarm.policy", "swarm.origin"},
    "swarm.agent": VOCABULARY
    | {"swarm.protocol", "swarm.policy", "swarm.store", "swarm.origin", "swarm.http"}
    | {"swarm.capacity"},
    "swarm.bench": VOCABULARY
    | {"swarm.protocol", "swarm.policy", "swarm.origin", "swarm.publish", "swarm.agent"}
    | {"swarm.capacity"},
    "swarm.loading": VOCABULARY | {"swarm.protocol"},
    "swarm.integrations": VOCABULARY | {"swarm.loading"},
    "swarm.cli": VOCABULARY
    | {"swarm.protocol", "swarm.policy", "swarm.store", "swarm.origin", "swarm.publish"}
    | {"swarm.agent", "swarm.loading", "swarm.http", "swarm.config", "swarm"}
    | {"swarm.capacity", "swarm.bench"},
    "tracker.policy": frozenset({"swarm.protocol", "swarm.errors"}),
    "tracker": frozenset({"swarm.protocol", "swarm.errors", "swarm.http", "tracker.policy"}),
    "simulations": VOCABULARY
    | {"swarm.protocol", "swarm.policy", "tracker.policy"}
    | {"swarm.capacity"},
}

# Rooms that decide or describe. They do no IO, read no clock and roll no global dice.
PURE_ROOMS = (
    "swarm.errors", "swarm.units", "swarm.protocol", "swarm.policy", "swarm.capacity",
    "tracker.policy",
)  # fmt: skip
IMPURE_MODULES = frozenset(
    {"trio", "httpx", "socket", "ssl", "os", "pathlib", "time", "datetime", "threading"}
    | {"subprocess", "logging", "asyncio", "secrets", "select", "shutil", "tempfile", "uuid"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint"})

# Runs inside the serving process, which has its own event loop or none.
UNWELCOME_MODULES = {"swarm.loading": frozenset({"trio", "httpx"})}

LINE_LIMIT = 400
TEST_LINE_LIMIT = 600

# Names that say nothing about what is inside.
EMPTY_NAMES = frozenset(
    {"utils", "util", "helpers", "common", "base", "manager", "misc", "core", "types"}
)


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The longest room name that `module` lies in, or "" when no room holds it."""
    fitting = [room for room in ARROWS if module == room or module.startswith(f"{room}.")]
    return max(fitting, key=len, default="")


def imported_modules(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    """Full names, relative ones resolved; `from a import b` is `a.b`, as b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                source = ".".join([*kept, source] if source else kept)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def arrow_violations(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    room = room_of(module)
    if not room:
        yield f"{module} lies in no room of the table"
        return
    for name in imported_modules(tree, module, is_package=is_package):
        top = name.partition(".")[0]
        if top in UNWELCOME_MODULES.get(room, ()):
            yield f"{module} imports {name}, unwelcome in {room}"
        if top not in OUR_PACKAGES:
            continue
        target = room_of(name)
        if target != room and target not in ARROWS[room]:
            yield f"{module} imports {name}: no arrow from {room} to {target or name}"


def purity_violations(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    if not any(module == room or module.startswith(f"{room}.") for room in PURE_ROOMS):
        return
    for name in imported_modules(tree, module, is_package=is_package):
        if name.partition(".")[0] in IMPURE_MODULES:
            yield f"{module} is pure and imports {name}"
        if name.startswith("random.") and name != "random.Random":
            yield f"{module} is pure and imports {name}; chance comes from a given random.Random"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="random"), attr=attribute):
                if attribute != "Random":
                    yield f"{module} is pure and uses random.{attribute} (line {node.lineno})"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{module} is pure and calls {name}() (line {node.lineno})"


def sources(*packages: str) -> list[Path]:
    return sorted(p for package in packages for p in (REPOSITORY / package).rglob("*.py"))


PRODUCT = sources("swarm", "tracker", "simulations")


@pytest.mark.parametrize("path", PRODUCT, ids=module_name)
def test_imports_follow_the_arrows(path: Path) -> None:
    tree = ast.parse(path.read_text())
    is_package = path.name == "__init__.py"
    found = [
        *arrow_violations(tree, module_name(path), is_package=is_package),
        *purity_violations(tree, module_name(path), is_package=is_package),
    ]
    assert not found, "\n".join(found)


def test_init_files_hold_a_docstring_and_nothing_else() -> None:
    directories = {path.parent for path in sources("swarm", "tracker", "simulations", "benchmarks")}
    for directory in sorted(directories):
        init = directory / "__init__.py"
        assert init.exists(), f"{directory} is a package without __init__.py"
        body = ast.parse(init.read_text()).body
        assert len(body) == 1, f"{init} holds more or less than a docstring"
        assert ast.get_docstring(ast.parse(init.read_text())), f"{init} has no docstring"


def test_files_stay_short() -> None:
    long = [
        f"{path.relative_to(REPOSITORY)}: {count} lines"
        for package in OUR_PACKAGES
        for path in sources(package)
        if (count := len(path.read_text().splitlines()))
        > (TEST_LINE_LIMIT if package == "tests" else LINE_LIMIT)
    ]
    assert not long, "look for the second noun in:\n" + "\n".join(long)


def test_names_say_what_is_inside() -> None:
    names = [path for package in OUR_PACKAGES for path in sources(package)]
    empty = [
        str(path.relative_to(REPOSITORY))
        for path in names
        if EMPTY_NAMES & set(path.relative_to(REPOSITORY).with_suffix("").parts)
    ]
    assert not empty, f"named after nothing: {empty}"


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("swarm.policy.picker", "import swarm.agent.agent", "no arrow from swarm.policy to"),
        ("swarm.policy.picker", "from swarm.store import disk", "to swarm.store"),
        ("swarm.policy.picker", "from ..store.disk import Disk", "to swarm.store"),
        ("swarm.protocol.ids", "from swarm.policy import node", "to swarm.policy"),
        ("swarm.store.disk", "from swarm.agent.agent import Agent", "to swarm.agent"),
        ("tracker.routes", "from swarm.policy.node import Node", "to swarm.policy"),
        ("tracker.policy.leases", "from tracker.routes import x", "from tracker.policy to tracker"),
        ("swarm.agent.agent", "import tests.support.network", "to tests.support.network"),
        ("swarm.agent.agent", "import simulations.timeline", "to simulations"),
        ("swarm.loading.reader", "import trio", "unwelcome in swarm.loading"),
        ("elsewhere.thing", "import json", "lies in no room"),
        ("swarm.policy.node", "import time", "is pure and imports time"),
        ("swarm.policy.node", "from os.path import join", "is pure and imports os.path.join"),
        ("tracker.policy.leases", "def f():\n    import logging", "pure and imports logging"),
        ("swarm.policy.node", "from random import shuffle", "pure and imports random.shuffle"),
        ("swarm.policy.node", "import random\nrandom.random()", "uses random.random (line 2)"),
        ("swarm.protocol.ids", "open('x')", "calls open()"),
    ],
)
def test_a_violation_is_found(module: str, source: str, expected: str) -> None:
    """The rules above would mean nothing if the walk could not see a breach."""
    tree = ast.parse(source)
    found = [
        *arrow_violations(tree, module, is_package=False),
        *purity_violations(tree, module, is_package=False),
    ]
    assert len(found) == 1, found
    assert expected in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("swarm.policy.picker", "from swarm.protocol.ids import PeerId\nimport random"),
        ("swarm.policy.picker", "def f(r: 'random.Random') -> float:\n    return r.random()"),
        ("swarm.policy.picker", "from .events import Event\nfrom random import Random"),
        ("swarm.agent.agent", "import trio\nfrom swarm.store.disk import DiskStore"),
        ("tracker.routes", "from tracker.policy.leases import Leases\nimport swarm.http"),
    ],
)
def test_what_is_allowed_is_not_refused(module: str, source: str) -> None:
    tree = ast.parse(source)
    assert not [*arrow_violations(tree, module, is_package=False)]
    assert not [*purity_violations(tree, module, is_package=False)]
