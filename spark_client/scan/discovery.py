"""Discovery: the files of paths and addresses, of Parquet or Arrow IPC, as a pyarrow Dataset.

Guarantee: of a directory the files are all below it, in the order of their paths; its folders ``name=value`` give
columns, in which all files of a scan must agree, and which replace a file's column of the same name. Empty files are
passed over, and names that begin with ``.``, or with ``_`` unless they have a ``=``. A file that was given by itself
has no columns from its path. What was given twice is read twice.

Addresses
    As ``pyarrow.fs.FileSystem.from_uri`` takes them, and ``s3a://``. Tasks get a file system as pyarrow pickles it:
    with the credentials that the address or the Dataset gives it, and else they find their own in their environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest, NotFound

from .folder_values import FolderRules, unescaped

Pairs = tuple[tuple[str, str], ...]
"""The names of a path's columns and their values' texts, from the outermost folder."""
_FORMATS = {"parquet": "parquet", "pq": "parquet", "arrow": "ipc", "feather": "ipc", "ipc": "ipc"}
_IPC_FILE = b"ARROW1"
"""How a file of Arrow's IPC format begins."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/")
_BUCKETS = ("s3", "gs", "gcs")


def dataset_of(
    what: Any,
    rules: FolderRules = FolderRules(),  # noqa: B008 - it is frozen
    types: Mapping[str, pa.DataType] | None = None,
) -> Any:
    """The dataset, with the schema of its first file.

    Args:
        what: a path, address, or list of them.
        rules: how names of folders are read.
        types: of folders' columns, where they are given.

    Raises:
        NotFound: a path does not exist, or no file is below it.
        InvalidRequest: files of both formats, or of another one, a first file that cannot be read, or folders that do
            not agree in their columns.
    """
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    texts = [what] if isinstance(what, str | Path) else list(what)
    if not texts or not all(isinstance(text, str | Path) for text in texts):
        raise InvalidRequest("scan: a list of paths has at least one, and texts or Paths only")
    files = list(_files(texts))
    if not files:
        raise NotFound(
            f"scan: there is no file with data in {texts[0]}{' and the others' if len(texts) > 1 else ''}; names that "
            "begin with _ or . are passed over, as in Spark"
        )
    form = _form([path for _, path, _ in files])
    columns = _columns(files, rules, types or {})
    expressions = {pairs: _expression(pairs, columns) for pairs in {pairs for _, _, pairs in files}}
    try:
        fragments = [
            form.make_fragment(path, filesystem, expressions[pairs]) for filesystem, path, pairs in files
        ]
        # It keeps its footer, which is looked at again.
        schema = fragments[0].physical_schema
        kinds = {name: pa.field(name, next(iter(values.values())).type) for name, values in columns.items()}
        fields = [kinds.pop(field.name, field) for field in schema]
        return ds.FileSystemDataset(fragments, pa.schema([*fields, *kinds.values()]), form, files[0][0])
    except (pa.ArrowException, OSError) as error:
        hint = ""
        if isinstance(form, ds.IpcFileFormat) and _begins_otherwise(*files[0][:2]):
            hint = "; an IPC stream or a file of Feather V1 must be written again as an IPC file"
        raise InvalidRequest(f"scan: {_first_line(error)}{hint}") from error


def _begins_otherwise(filesystem: Any, path: str) -> bool:
    """Whether the file can be read, and is none of Arrow IPC by its first bytes."""
    with suppress(OSError), filesystem.open_input_file(path) as source:
        return bool(source.read(len(_IPC_FILE)) != _IPC_FILE)
    return False


def _files(texts: Iterable[str | Path]) -> Iterator[tuple[Any, str, Pairs]]:
    """Each file with its file system and its folders' columns, in the order of the texts."""
    from pyarrow import fs  # noqa: PLC0415 - as above

    systems: dict[str, tuple[Any, str]] = {}
    paths = [(*located(str(text), systems, "scan"), text) for text in texts]
    # Of neighbours in one call, so that a store is asked in parallel.
    for _, group in groupby(paths, lambda each: id(each[0])):
        run = list(group)
        filesystem = run[0][0]
        infos = _list(filesystem, [path for _, path, _ in run])
        for info, (_, _, text) in zip(infos, run, strict=True):
            if info.type == fs.FileType.NotFound:
                hint = (
                    "; a pattern is no path: give the list of files"
                    if re.search(r"[*?\[{]", str(text))
                    else ""
                )
                raise NotFound(f"scan: there is no file or directory {text}{hint}")
            if info.type == fs.FileType.Directory:
                yield from _below(filesystem, info.path, text)
            elif info.size != 0 and not is_hidden(info.base_name):
                yield filesystem, info.path, ()


def _below(filesystem: Any, base: str, text: str | Path) -> Iterator[tuple[Any, str, Pairs]]:
    from pyarrow import fs  # noqa: PLC0415 - as above

    listed = _list(filesystem, fs.FileSelector(base, recursive=True))
    for info in sorted(listed, key=lambda info: info.path):
        parts = info.path.removeprefix(base).strip("/").split("/")
        if parts[0] == "_delta_log":
            raise InvalidRequest(
                f"scan: {text} is a Delta table, and some of its files may be of older versions: give "
                "deltalake.DeltaTable(...).to_pyarrow_dataset()"
            )
        if info.type != fs.FileType.File or info.size == 0 or any(map(is_hidden, parts)):
            continue
        named = [part.partition("=") for part in parts[:-1] if "=" in part]
        pairs = tuple((unescaped(name), value) for name, _, value in named)
        if len(dict(pairs)) < len(pairs) or not all(map(all, pairs)):
            raise InvalidRequest(
                f"scan: the folders of {info.path} give a column twice, or lack its name or value; rename them"
            )
        yield filesystem, info.path, pairs


def located(
    text: str,
    systems: dict[str, tuple[Any, str]],
    where: str,
    remedy: str = "give pyarrow.dataset.dataset(…, filesystem=…)",
) -> tuple[Any, str]:
    """The file system of a path or address, and the path in it, for a call of the name ``where``; ``remedy`` is for
    systems that pyarrow does not know. One bucket has one file system.
    """
    from pyarrow import fs  # noqa: PLC0415 - as above

    if not _ADDRESS.match(text):
        return systems.setdefault("", (fs.LocalFileSystem(), ""))[0], str(Path.cwd() / text)
    address = re.sub("^s3[an]://", "s3://", text)
    parts = urlsplit(address, allow_fragments=False)
    try:
        if parts.scheme not in _BUCKETS:
            filesystem, path = fs.FileSystem.from_uri(address)
            return systems.setdefault(f"{parts.scheme}://{parts.netloc}", (filesystem, ""))[0], path
        place = parts._replace(path="").geturl()
        if place not in systems:
            # Once, because pyarrow asks the store for its region each time.
            systems[place] = fs.FileSystem.from_uri(place)
        filesystem, root = systems[place]
        return filesystem, f"{root}{unquote(parts.path)}".rstrip("/")
    except ValueError as error:
        raise InvalidRequest(
            f"{where}: {text}: {_first_line(error)}; for other file systems {remedy}"
        ) from error
    except OSError as error:
        raise InvalidRequest(f"{where}: {text} cannot be reached: {_first_line(error)}") from error


def _list(filesystem: Any, what: Any) -> list[Any]:
    try:
        return list(filesystem.get_file_info(what))
    except OSError as error:
        raise InvalidRequest(f"scan: {_first_line(error)}") from error


def is_hidden(name: str) -> bool:
    """Whether readers pass over a file or folder of this name, as Spark's do."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _form(paths: list[str]) -> Any:
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    kinds = {_FORMATS.get(path.rpartition(".")[2].lower()): path for path in reversed(paths)}
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


def _columns(
    files: list[tuple[Any, str, Pairs]], rules: FolderRules, types: Mapping[str, pa.DataType]
) -> dict[str, dict[str, Any]]:
    """The values of each column of folders, by their texts."""
    names = {tuple(name for name, _ in pairs): path for _, path, pairs in files}
    if len(names) > 1:
        first, second, *_ = names.values()
        raise InvalidRequest(
            f"scan: the folders of {first} and {second} give different columns; give each kind of folders a scan "
            "of its own"
        )
    texts: dict[str, dict[str, None]] = {}
    for name, text in (pair for _, _, pairs in files for pair in pairs):
        texts.setdefault(name, {})[text] = None
    return {name: rules.values(name, each, types.get(name)) for name, each in texts.items()}


def _expression(pairs: Pairs, columns: Mapping[str, Mapping[str, Any]]) -> Any:
    """The values of a file's folders as pyarrow's partition expression; None for one without columns."""
    whole = None
    for name, text in pairs:
        field, value = compute().field(name), columns[name][text]
        each = field == value if value.is_valid else field.is_null()
        whole = each if whole is None else whole & each
    return whole


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
