"""Discovery: the files of directories, patterns, lists and addresses, as a pyarrow Dataset.

Guarantee: the files are those that ``spark.read`` takes: of a directory those in it, or, where its folders
``name=value`` give columns (``partitions``), those in such folders, in the order of their paths; with ``recursive``
all below it, without columns. Empty files are passed over, and names that begin with ``.``, or with ``_`` unless they
have a ``=``. A file that was given by itself has no columns from its path.

Given twice
    A file or directory that is given twice is read twice, but once with ``recursive`` or where folders give columns.

Beyond Spark
    Several directories whose folders give the same columns are read together, which Spark refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest, NotFound, shown

from .file_systems import locate
from .folder_values import FolderRules
from .globs import is_pattern, matching
from .partitions import Pairs, Partitions, folders_with_columns

_FORMATS = {"parquet": "parquet", "pq": "parquet", "arrow": "ipc", "feather": "ipc", "ipc": "ipc"}
# Spark looks into folders of such names, as it looks for Parquet's summaries.
_SUMMARIES = ("_metadata", "_common_metadata")


def dataset_of(
    what: Any,
    rules: FolderRules = FolderRules(),  # noqa: B008 - it is frozen
    *,
    recursive: bool = False,
) -> Any:
    """The dataset, with the schema of its first file.

    Args:
        what: a path, address, pattern of these, or list of them.
        rules: how names of folders are read.
        recursive: all files below a directory, each once, and no columns from folders.

    Raises:
        NotFound: a path does not exist, or no file is below it.
        InvalidRequest: files of both formats, or of another one, a first file that cannot be read, or folders that do
            not agree in their columns.
    """
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    texts = [what] if isinstance(what, str | Path) else list(_texts(what))
    if not texts:
        raise InvalidRequest("scan: the list of paths is empty")
    files = _Files(rules, recursive=recursive)
    found = list(files.of(texts))
    if not found:
        raise NotFound(f"scan: {files.without_data[0]}")
    form = _form([path for _, path, _ in found])
    partitions = Partitions(files.folders, rules)
    try:
        fragments = [
            form.make_fragment(path, filesystem, partitions.expression(pairs))
            for filesystem, path, pairs in found
        ]
        schema = partitions.with_columns(form.inspect(found[0][1], found[0][0]))
        return ds.FileSystemDataset(fragments, schema, form, found[0][0])
    except (pa.ArrowException, OSError) as error:
        hint = ""
        if isinstance(form, ds.IpcFileFormat) and "Not an Arrow file" in str(error):
            hint = "; an IPC stream or a file of Feather V1 must be written again as an IPC file"
        raise InvalidRequest(f"scan: {_first_line(error)}{hint}") from error


def _texts(what: Iterable[Any]) -> Iterable[str | Path]:
    for each in what:
        if not isinstance(each, str | Path):
            raise InvalidRequest(
                f"scan: a list of paths has {type(each).__name__} in it; give texts or Paths"
            )
        yield each


class _Files:
    """The files of the user's paths, each with its file system and its folders' columns."""

    def __init__(self, rules: FolderRules, *, recursive: bool) -> None:
        self.folders: dict[Pairs, None] = {}
        # Why each path that gives no file does not; as in Spark an error only if none gives one.
        self.without_data: list[str] = []
        self._rules = rules
        self._recursive = recursive
        # File systems by path, of files that are taken only once.
        self._taken: dict[str, list[Any]] = {}

    def of(self, texts: Sequence[str | Path]) -> Iterator[tuple[Any, str, Pairs]]:
        """In the order of the texts. Raises as :func:`dataset_of`."""
        from pyarrow import fs  # noqa: PLC0415 - as above

        runs: list[tuple[Any, list[tuple[str, str | Path]]]] = []
        for (filesystem, pattern), text in zip(locate(map(str, texts)), texts, strict=True):
            if not runs or not runs[-1][0].equals(filesystem):
                runs.append((filesystem, []))
            runs[-1][1].append((pattern, text))
        for filesystem, given in runs:
            for info, text in _ask(filesystem, given):
                if info.type == fs.FileType.Directory:
                    yield from self._below(filesystem, info.path, text)
                elif _is_hidden(info.base_name) or info.size == 0:
                    self.without_data.append(
                        f"{text} is empty, or has a name that begins with _ or ., which is passed over as in Spark"
                    )
                elif not self._recursive or self._is_new(filesystem, info.path):
                    yield filesystem, info.path, ()

    def _below(self, filesystem: Any, base: str, text: str | Path) -> Iterator[tuple[Any, str, Pairs]]:
        from pyarrow import fs  # noqa: PLC0415 - as above

        listed = _list(filesystem, fs.FileSelector(base, recursive=True))
        if any(each.path.removeprefix(base).strip("/") == "_delta_log" for each in listed):
            raise InvalidRequest(
                f"scan: {text} is a Delta table, and some of its files may be of older versions: give "
                "deltalake.DeltaTable(...).to_pyarrow_dataset()"
            )
        listed.sort(key=lambda info: info.path)
        files = [each for each in listed if each.type == fs.FileType.File and _is_seen(each.path, base)]
        # Also a folder whose files are all empty counts, as in Spark.
        folders = dict.fromkeys(_folder(each.path) for each in files)
        columns = {} if self._recursive else folders_with_columns(base, folders, self._rules)
        self.folders.update(dict.fromkeys(columns.values()))
        if self._recursive:
            taken = [each for each in files if each.size != 0 and self._is_new(filesystem, each.path)]
        elif columns:
            is_new = self._is_new(filesystem, base)
            taken = [each for each in files if each.size != 0 and _folder(each.path) in columns and is_new]
        else:
            taken = [each for each in files if each.size != 0 and _folder(each.path) == base.rstrip("/")]
        if not any(each.size != 0 for each in files):
            self.without_data.append(f"there is no file with data below {text}")
        elif not taken:
            self.without_data.append(
                f"there is no file with data in {text} itself, only in its subfolders; give them by a pattern such as "
                "dir/*, or recursive=True"
            )
        for each in taken:
            yield filesystem, each.path, columns.get(_folder(each.path), ())

    def _is_new(self, filesystem: Any, path: str) -> bool:
        known = self._taken.setdefault(path, [])
        if any(map(filesystem.equals, known)):
            return False
        known.append(filesystem)
        return True


def _ask(filesystem: Any, given: Sequence[tuple[str, str | Path]]) -> Iterator[tuple[Any, str | Path]]:
    """The files and directories of each pattern, with the user's text."""
    from pyarrow import fs  # noqa: PLC0415 - as above

    # In one call, so that a store is asked in parallel.
    plain = iter(_list(filesystem, [path for path, _ in given if not is_pattern(path)]))
    for pattern, text in given:
        try:
            found = matching(filesystem, pattern) if is_pattern(pattern) else [next(plain)]
        except OSError as error:
            raise InvalidRequest(f"scan: {_first_line(error)}") from error
        if not found:
            raise NotFound(
                rf"scan: nothing matches the pattern {text}; a backslash takes one of {{}}[]*?\ in a name as it is"
            )
        if found[0].type == fs.FileType.NotFound:
            hint = (
                "; % and two digits stand for a character in an address: write % as %25"
                if "%" in str(text) and ":/" in str(text)
                else ""
            )
            raise NotFound(f"scan: there is no file or directory {text}{hint}")
        for info in found:
            yield info, text


def _list(filesystem: Any, what: Any) -> list[Any]:
    try:
        return list(filesystem.get_file_info(what))
    except OSError as error:
        raise InvalidRequest(f"scan: {_first_line(error)}") from error


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _is_seen(path: str, base: str) -> bool:
    *folders, name = path.removeprefix(base).strip("/").split("/")
    return not _is_hidden(name) and not any(
        _is_hidden(each) and not each.startswith(_SUMMARIES) for each in folders
    )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.endswith("._COPYING_") or (name.startswith("_") and "=" not in name)


def _form(paths: list[str]) -> Any:
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    kinds = {_FORMATS.get(shown(path).rpartition(".")[2].lower()): path for path in reversed(paths)}
    if None in kinds:
        raise InvalidRequest(
            f"scan: by its name {kinds[None]} is neither Parquet (.parquet) nor Arrow IPC (.arrow, .feather): give "
            "pyarrow.dataset.dataset(…, format=…), or take pipeline(spark.read…)"
        )
    if len(kinds) > 1:
        first, second, *_ = kinds.values()
        raise InvalidRequest(
            f"scan: {second} and {first} are of two formats; give each format a scan of its own"
        )
    return ds.ParquetFileFormat() if "parquet" in kinds else ds.IpcFileFormat()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
