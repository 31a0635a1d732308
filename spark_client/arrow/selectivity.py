"""Guesses which part of the rows a filter keeps, without a look at them.

The guesses are those of System R for columns of which nothing is known (Selinger et al., Access Path Selection in a
Relational Database Management System, 1979): a tenth for ``==``, a third for any other condition; of conditions that
are joined by "and" the product, of those joined by "or" the sum. A negation keeps what the condition does not.
"""

from __future__ import annotations

import re
from typing import Any

EQUAL = 0.1
OTHER = 1 / 3

_INVERT = "invert("
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_SET = re.compile(r"\{[^{}]*\}")
_MARK = re.compile(r"\(| and | or |\)")


def kept_share(expression: Any) -> float:
    """The part of the rows, above 0 and at most 1; of no filter (None) all."""
    if expression is None:
        return 1.0
    # The text of an expression is all that pyarrow tells of its parts.
    text = _SET.sub("?", _TEXT.sub("?", str(expression)))
    return min(1.0, max(1e-6, _kept(text)))


def _kept(text: str) -> float:
    text = _without_brackets(text)
    if text.startswith(_INVERT) and _end_of_bracket(text[len(_INVERT) - 1 :]) == len(text) - len(_INVERT):
        return 1.0 - _kept(text[len(_INVERT) - 1 :])
    parts, words = _parts(text)
    if not words:
        if text == "true" or text.startswith("is_valid("):
            return 1.0
        return 1.0 - EQUAL if " != " in text else EQUAL if " == " in text else OTHER
    kept = [_kept(part) for part in parts]
    found = kept[0]
    for word, more in zip(words, kept[1:], strict=True):
        found = found * more if word == "and" else found + more - found * more
    return found


def _without_brackets(text: str) -> str:
    """The text inside of brackets that are around all of it."""
    while text.startswith("(") and _end_of_bracket(text) == len(text) - 1:
        text = text[1:-1]
    return text


def _end_of_bracket(text: str) -> int:
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    return -1


def _parts(text: str) -> tuple[list[str], list[str]]:
    """The conditions that stand beside each other, and the words between them."""
    parts, words = list[str](), list[str]()
    depth = start = 0
    for found in _MARK.finditer(text):
        mark = found[0].strip()
        depth += (mark == "(") - (mark == ")")
        if not depth and mark in ("and", "or"):
            parts.append(text[start : found.start()])
            words.append(mark)
            start = found.end()
    return [*parts, text[start:]], words
