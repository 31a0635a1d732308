"""What ``doctor`` finds: one verdict for each check, with one sentence that says what to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .printing import print_json, print_line


class Verdict(StrEnum):
    """``BAD``: something does not work, or will not; ``WARN``: it works, and may cost time or safety."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One check's.

    Args:
        check: its name, the same in every run.
        text: what was found.
        remedy: what to change; None where there is nothing.
        server: the location of the server that it is about, if it is about one.
    """

    verdict: Verdict
    check: str
    text: str
    remedy: str | None = None
    server: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(check: str, text: str) -> Finding:
    """Nothing to change."""
    return Finding(Verdict.OK, check, text)


def warn(check: str, text: str, remedy: str) -> Finding:
    """It works, and may cost time or safety."""
    return Finding(Verdict.WARN, check, text, remedy)


def bad(check: str, text: str, remedy: str) -> Finding:
    """It does not work, or will not."""
    return Finding(Verdict.BAD, check, text, remedy)


def print_findings(findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print each as it is found; whether one is bad."""
    any_bad, about = False, None
    for each in findings:
        any_bad = any_bad or each.verdict is Verdict.BAD
        if as_json:
            print_json(each.to_json())
            continue
        if each.server != about and each.server is not None:
            print_line(each.server)
        about = each.server
        print_line(f"{each.verdict:<4}  {each.check}: {each.text}")
        if each.remedy is not None:
            print_line(f"      -> {each.remedy}")
    return any_bad
