"""The columns that folders ``name=value`` give (hive partitions), found as ``spark.read`` finds them.

Guarantee: the folders below one directory give columns only if all folders with files agree in them; then exactly the
files in such folders are read, otherwise exactly those that lie in the directory itself. Plain folders may lie above
or below those of the columns: of a path, the columns are those of the last folders ``name=value`` that follow each
other, as in ``2024/k=1/part/x.parquet``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest

from .folder_values import FolderRules, unescaped

Pairs = tuple[tuple[str, str], ...]
"""The names of a folder's columns and their values' texts, from the outermost."""


def folders_with_columns(base: str, folders: Iterable[str], rules: FolderRules) -> dict[str, Pairs]:
    """Those of ``folders``, which have files and lie below ``base``, that give columns. Raises InvalidRequest: they do
    not agree, or a name or value is empty or there twice.
    """
    above: dict[str, str] = {}
    found: dict[str, Pairs] = {}
    for folder in folders:
        parts = folder.removeprefix(base).strip("/").split("/")
        depth, pairs = _pairs(parts, folder)
        above.setdefault("/".join(parts[:depth]).lower(), folder)
        if pairs:
            found[folder] = pairs
    if found and len(above) > 1:
        first, second, *_ = above.values()
        raise InvalidRequest(
            f"scan: {first} and {second} have files, but not both are in folders name=value of one directory, so the "
            "columns are not clear; give the directories that are meant, or recursive=True, without columns of folders"
        )
    names: dict[tuple[str, ...], str] = {}
    for folder, pairs in found.items():
        keys = tuple(rules.key(name) for name, _ in pairs)
        if len(set(keys)) < len(keys):
            raise InvalidRequest(f"scan: {folder} gives a column twice; rename a folder")
        names.setdefault(keys, folder)
    if len(names) > 1:
        first, second, *_ = names.values()
        raise InvalidRequest(
            f"scan: the folders {first} and {second} give different columns; give each kind of folders a scan of its "
            "own, or recursive=True, without columns of folders"
        )
    return found


def _pairs(parts: list[str], folder: str) -> tuple[int, Pairs]:
    """How many parts are above the columns' folders, and those."""
    found: list[tuple[str, str]] = []
    for depth in reversed(range(len(parts))):
        name, is_pair, value = parts[depth].partition("=")
        if is_pair:
            if not name or not value:
                raise InvalidRequest(
                    f"scan: in {folder} the folder {parts[depth]!r} lacks a name or a value; rename it"
                )
            found.insert(0, (unescaped(name), value))
        elif found:
            return depth + 1, tuple(found)
    return (0 if found else len(parts)), tuple(found)


class Partitions:
    """The columns of all folders of a scan, with one type and spelling for each."""

    def __init__(self, folders: Iterable[Pairs], rules: FolderRules) -> None:
        self._rules = rules
        self._names: dict[str, str] = {}
        texts: dict[str, dict[str, None]] = {}
        for name, text in (pair for pairs in folders for pair in pairs):
            key = rules.key(name)
            self._names.setdefault(key, name)
            texts.setdefault(key, {})[text] = None
        self._values: dict[str, Mapping[str, Any]] = {
            key: rules.values(self._names[key], each) for key, each in texts.items()
        }
        self._known: dict[Pairs, Any] = {}

    def with_columns(self, schema: pa.Schema) -> pa.Schema:
        """A file's schema and the folders' columns, which replace those of the same name, as in Spark."""
        remaining = {key: pa.field(name, self._kind(key)) for key, name in self._names.items()}
        fields = [remaining.pop(self._rules.key(field.name), field) for field in schema]
        return pa.schema([*fields, *remaining.values()])

    def _kind(self, key: str) -> pa.DataType:
        return next(iter(self._values[key].values())).type

    def expression(self, pairs: Pairs) -> Any:
        """A folder's values as pyarrow's partition expression; None for a folder without columns."""
        if pairs and pairs not in self._known:
            import pyarrow.compute as pc  # noqa: PLC0415 - only a scan needs it

            whole = None
            for name, text in pairs:
                key = self._rules.key(name)
                field, value = pc.field(self._names[key]), self._values[key][text]
                each = field == value if value.is_valid else field.is_null()
                whole = each if whole is None else whole & each
            self._known[pairs] = whole
        return self._known.get(pairs)
