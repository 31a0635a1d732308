"""Patterns of paths as Hadoop, and so ``spark.read``, takes them: which files and directories one names.

``?`` is one character, ``*`` any number, ``[a-c]`` one of these, ``[^a]`` or ``[!a]`` one of the others, ``{a,b/c}``
one of the texts; a backslash takes the next character as it is. Only braces match beyond a ``/``. ``**`` is ``*``.
Names that begin with a dot match, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from flight_server.protocol import InvalidRequest

_SPECIAL = re.compile(r"[{}\[\]*?\\]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LISTING_THREADS = 16


def is_pattern(path: str) -> bool:
    """Whether the path has a character that is special in a pattern."""
    return _SPECIAL.search(path) is not None


def escaped(path: str) -> str:
    """The pattern that names this path only."""
    return _SPECIAL.sub(r"\\\g<0>", path)


def matching(filesystem: Any, pattern: str) -> list[Any]:
    """The FileInfo of each file and directory that the pattern names, in the order of their paths.

    Raises:
        InvalidRequest: a bracket or brace is not closed.
        OSError: the file system cannot be listed.
    """
    found = {}
    for alternative in _alternatives(pattern):
        for info in _matching(filesystem, alternative.split("/")):
            found[info.path] = info
    return [found[path] for path in sorted(found)]


def _matching(filesystem: Any, parts: list[str]) -> list[Any]:
    from pyarrow import fs  # noqa: PLC0415 - only a scan needs it

    def below(directory: str) -> list[Any]:
        try:
            return list(filesystem.get_file_info(fs.FileSelector(directory or "/", allow_not_found=True)))
        except NotADirectoryError:
            return []

    paths = [""]
    with ThreadPoolExecutor(_LISTING_THREADS, "scan") as pool:
        for number, part in enumerate(parts):
            if _is_wild(part):
                rule = _rule(part)
                is_last = number == len(parts) - 1
                listed = [info for infos in pool.map(below, paths) for info in infos]
                paths = [
                    info.path
                    for info in listed
                    if rule.fullmatch(info.base_name) and (is_last or info.type == fs.FileType.Directory)
                ]
            else:
                name = _ESCAPED.sub(r"\1", part)
                paths = [f"{path}/{name}" if number else name for path in paths]
    return [info for info in filesystem.get_file_info(paths) if info.type != fs.FileType.NotFound]


def _is_wild(part: str) -> bool:
    return re.search(r"[\[*?]", _ESCAPED.sub("", part)) is not None


def _alternatives(pattern: str) -> Iterator[str]:
    """The pattern once for each choice from its braces."""
    opened = 0
    cuts = []
    escape = False
    for index, character in enumerate(pattern):
        if escape or character == "\\":
            escape = not escape
            continue
        if character == "{":
            opened += 1
            if opened == 1:
                cuts = [index]
        elif opened == 1 and character in ",}":
            cuts.append(index)
        if character == "}" and opened:
            opened -= 1
            if not opened:
                for start, end in pairwise(cuts):
                    yield from _alternatives(
                        pattern[: cuts[0]] + pattern[start + 1 : end] + pattern[index + 1 :]
                    )
                return
    if opened:
        raise InvalidRequest(
            f"scan: a brace of {pattern} is not closed; a backslash before it takes it as it is"
        )
    yield pattern


def _rule(part: str) -> re.Pattern[str]:
    found = ""
    in_class = False
    characters = iter(part)
    for character in characters:
        if character == "\\":
            found += re.escape(next(characters, "\\"))
        elif character == "[" and not in_class:
            in_class = True
            found += character
        elif character == "]" and in_class:
            in_class = False
            found += character
        elif in_class:
            negates = character in "!^" and found.endswith("[")
            found += "^" if negates else character if character == "-" else re.escape(character)
        else:
            found += {"*": ".*", "?": "."}.get(character) or re.escape(character)
    try:
        return re.compile(found, re.DOTALL)
    except re.error as error:
        raise InvalidRequest(
            f"scan: a bracket of {part} is not closed or empty; a backslash before it takes it as it is"
        ) from error
