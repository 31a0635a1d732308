"""A Dockerfile's text: its stages and their instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

Instruction = tuple[str, str]


@dataclass(frozen=True)
class Stage:
    """``FROM base AS name``, and the instructions with their arguments, continuation lines joined."""

    name: str
    base: str
    instructions: list[Instruction]

    def last(self, word: str) -> str:
        """The arguments of the last such instruction: the one that counts. Raises KeyError: there is none."""
        return dict(self.instructions)[word]


def stages(path: Path) -> dict[str, Stage]:
    """The stages by their names, in the order of the file."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = Stage(name, base, [])
        else:
            list(found.values())[-1].instructions.append((word, rest))
    return found
