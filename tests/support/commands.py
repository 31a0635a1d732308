"""The command ``flight-shuffle`` in this process: its exit code and what it prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from spark_client.commands import run


@dataclass
class Said:
    """What a command has printed, as bytes and as text."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[Any]:
        """Each line of standard output, which are all JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """Runs commands against one server."""

    def __init__(self, location: str, capture: pytest.CaptureFixture[bytes]) -> None:
        self.location = location
        self._capture = capture

    def __call__(self, *arguments: object) -> Said:
        self._capture.readouterr()
        code = run([str(each) for each in (*arguments, "-s", self.location)])
        out, err = self._capture.readouterr()
        return Said(code, out, err.decode())
