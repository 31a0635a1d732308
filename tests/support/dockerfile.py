"""A Dockerfile's text: its stages, their instructions, and what an image says of the process that it starts."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

Instruction = tuple[str, str]
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Stage:
    """``FROM base AS name``, and the instructions with their arguments, continuation lines joined."""

    name: str
    base: str
    instructions: list[Instruction]

    def last(self, word: str) -> str:
        """The arguments of the last such instruction: the one that counts. Raises KeyError: there is none."""
        return dict(self.instructions)[word]


@dataclass
class Image:
    """What an image's instructions say beside its files."""

    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    directory: str = "/"
    user: str = "0:0"
    entry: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    volumes: list[str] = field(default_factory=list)

    def take(self, word: str, rest: str) -> None:
        """Note an instruction that changes no file. Raises ValueError: one that is not known here."""
        match word:
            case "ENV":
                known = dict(self.environment)
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    self.environment[name] = re.sub(r"\$(\w+)", lambda found: known[found[1]], value)
            case "WORKDIR":
                self.directory = rest
            case "USER":
                self.user = rest
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case "HEALTHCHECK":
                self.health_check = json.loads(rest.partition(" CMD ")[2])
            case "STOPSIGNAL":
                self.stop_signal = rest
            case "VOLUME":
                self.volumes.append(rest)
            case "EXPOSE":
                pass
            case _:
                raise ValueError(f"{word} is not carried out here")


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
