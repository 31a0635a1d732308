"""The rooms of the two packages, from the top down, and what each imports; run as a module it draws them.

Imports inside functions and under ``TYPE_CHECKING`` count like all others: what a module knows of, it
depends on.
"""

from __future__ import annotations

import ast
import gc
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Each room uses only rooms below it. The modules at a package's root are above all rooms.
ROOMS: dict[str, tuple[str, ...]] = {
    "spark_client": (
        "commands",
        "pipeline",
        "writing",
        "scan",
        "broadcast",
        "lookup",
        "datasource",
        "changelogs",
        "settings",
        "jobs",
        "steps",
        "joining",
        "reducing",
        "executors",
        "hosts",
        "servers",
        "merge",
        "lanes",
        "connection",
        "spill",
        "placement",
        "arrow",
        "pyspark_parts",
    ),
    "flight_server": (
        "lanes.http",
        "lanes.grpc",
        "reporting",
        "transfer",
        "kinds.source",
        "kinds.changelog",
        "kinds",
        "tiering",
        "datasets",
        "kinds.changelog.rules",
        "kinds.changelog.runs",
        "frames",
        "storage",
        "records",
        "access",
        "memory",
        "concurrency",
        "host",
        "tracing",
        "protocol",
        "keys",
    ),
}


def sources(package: str) -> list[Path]:
    """Its files."""
    return sorted((ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The file's syntax tree.

    The collector, which visits the nodes again and again while they are made, would take three quarters of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        if collects:
            gc.enable()


def dotted(path: Path) -> str:
    """The name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for package in ROOMS for path in sources(package)}


@cache
def imports(path: Path) -> frozenset[str]:
    """The dotted names of all modules that a file imports, wherever in the file it does so."""
    own = dotted(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from package import name`: the name may be a module or something that the package defines.
            names = {f"{base}.{alias.name}" for alias in node.names}
            modules = {name for name in names if name in MODULES}
            found.update(modules)
            if modules != names:
                found.add(base)
    return frozenset(found)


def room_of(module: str) -> str:
    """The innermost room of a module, or of a room's face; empty for the root of a package."""
    package, _, rest = module.partition(".")
    rooms = [room for room in ROOMS[package] if rest == room or rest.startswith(f"{room}.")]
    return max(rooms, key=len, default="")


def arrows(package: str) -> dict[str, set[str]]:
    """For each room, and the root, the rooms of the same package that it imports."""
    found: dict[str, set[str]] = {"": set(), **{room: set() for room in ROOMS[package]}}
    for path in sources(package):
        room = room_of(dotted(path))
        for name in imports(path):
            if name.startswith(f"{package}."):
                found[room].add(room_of(name))
    return {room: others - {room, ""} for room, others in found.items()}


def shared(package: str) -> set[str]:
    """The rooms of the server that a package of the client imports."""
    names = {name for path in sources(package) for name in imports(path)}
    return {room_of(name) for name in names if name.startswith("flight_server.")}


def floors(package: str) -> dict[str, int]:
    """How many rooms lie below each room, one above the other."""
    below, found = arrows(package), dict[str, int]()
    for room in [*reversed(ROOMS[package]), ""]:
        found[room] = max((found[other] + 1 for other in below[room]), default=0)
    return found


def drawing() -> str:
    """Each package as a house: its floors from the top down, and what each room imports of those below."""
    lines = []
    for package in ROOMS:
        lines.append(package)
        floor_of, below = floors(package), arrows(package)
        by_floor = sorted(floor_of, key=lambda room: -floor_of[room])
        for floor, rooms in groupby(by_floor, key=lambda room: floor_of[room]):
            lines += (
                f"  {floor:2}  {room or '(root)':<14} {' '.join(sorted(below[room]))}".rstrip()
                for room in rooms
            )
        if package == "spark_client":
            lines.append(f"      of flight_server: {' '.join(sorted(shared(package)))}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(drawing())  # this is what it is for
