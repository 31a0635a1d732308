"""The pages of the repository, their blocks of code and their links."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
_PRINTED = re.compile(r"<!-- prints: (\w+) -->\n```\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_NAMED = re.compile(r'<a id="([^"]+)">')


@cache
def pages() -> tuple[Path, ...]:
    """All that git knows, or is about to."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return tuple(ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file())


def blocks() -> dict[str, str]:
    """The blocks of Python that tests run, by their names."""
    return _named(_BLOCK)


def printed() -> dict[str, str]:
    """What pages say that a block prints, by the block's name."""
    return _named(_PRINTED)


def _named(pattern: re.Pattern[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for page in pages():
        for name, text in pattern.findall(page.read_text()):
            assert name not in found, f"{page} has another block {name}"
            found[name] = text
    return found


def python_blocks(page: Path) -> list[str]:
    """All blocks of Python of a page, with or without a name."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """What a page's text links to."""
    return _LINK.findall(_CODE.sub("", page.read_text()))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The places in a page that a link can name."""
    text = _CODE.sub("", page.read_text())
    headings = (re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in _HEADING.findall(text))
    return frozenset([*headings, *_NAMED.findall(text)])
