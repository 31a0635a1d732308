"""The page of threats names tests that there are."""

from __future__ import annotations

import re
from collections import Counter

from tests.support.rooms import ROOT

PAGE = (ROOT / "deploy" / "threats.md").read_text()
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_each_threat_has_a_mechanism_and_a_test() -> None:
    assert ROWS
    for threat, mechanism, tests in ROWS:
        assert mechanism.strip(), threat
        assert re.findall(r"`(test_\w+)`", tests), threat


def test_the_tests_that_the_page_names_are_there_once() -> None:
    defined = Counter(
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    )
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert {name: defined[name] for name in named if defined[name] != 1} == {}
