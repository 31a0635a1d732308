"""What a scan was given, as a pyarrow Dataset: the files below a directory, of a list or at an address.

Guarantee: every file of the dataset is one that was given or lies below a directory that was given; a directory's are
in the order of their paths. Columns come from folders ``name=value`` below a given directory (``partitions``), never
from the path of a file that was given by itself. As in Spark, empty files of a directory are passed over, and names
that begin with ``.``, or with ``_`` unless they are a partition's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest, NotFound

from .file_systems import locate
from .partitions import NULL, partition_schema, with_partitions

_FORMATS = {
    "parquet": ("parquet", "pq"),
    "ipc": ("arrow", "feather", "ipc"),
    "csv": ("csv",),
    "orc": ("orc",),
    "json": ("json", "jsonl", "ndjson"),
}
_NAMES = {"arrow": "ipc", "feather": "ipc", "pq": "parquet"}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")


def dataset_of(what: Any, format: Any = None) -> Any:  # noqa: A002 - pyarrow's name
    """The dataset, with the schema of its first file.

    Args:
        what: a path, address, or list of them.
        format: ``parquet``, ``ipc``, ``csv``, ``orc``, ``json``, or a FileFormat of pyarrow; None to go by the files'
            names.

    Raises:
        NotFound: a path does not exist, or no file is below it.
        InvalidRequest: several kinds of files, an unknown one, or a first file that cannot be read.
    """
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    texts = [what] if isinstance(what, str | Path) else list(_texts(what))
    groups = list(_groups(texts))
    if not groups:
        raise InvalidRequest("scan: the list of paths is empty")
    paths = [path for _, _, group in groups for path in group]
    form = _form(format, paths)
    try:
        found = [_dataset(filesystem, base, group, form) for filesystem, base, group in groups]
        if len(found) == 1:
            return found[0]
        schema = pa.unify_schemas([each.schema for each in found])
        return ds.UnionDataset(schema, [each.replace_schema(schema) for each in found])
    except (pa.ArrowException, OSError) as error:
        hint = ""
        if isinstance(form, ds.IpcFileFormat) and "Not an Arrow file" in str(error):
            hint = "; an IPC stream or a file of Feather V1 must be written again as an IPC file"
        raise InvalidRequest(f"scan: {_first_line(error)}{hint}") from error


def _dataset(filesystem: Any, base: str | None, paths: list[str], form: Any) -> Any:
    """With the schema of the first file, and the columns of the folders below ``base``."""
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    schema, options = form.inspect(paths[0], filesystem), None
    if base is not None:
        partitions = partition_schema(base, paths)
        schema = with_partitions(schema, partitions)
        options = ds.FileSystemFactoryOptions(
            partitioning=ds.HivePartitioning(partitions, null_fallback=NULL)
        )
        options.partition_base_dir = base
    return ds.FileSystemDatasetFactory(filesystem, paths, form, options).finish(schema)


def _texts(what: Iterable[Any]) -> Iterable[str | Path]:
    for each in what:
        if not isinstance(each, str | Path):
            raise InvalidRequest(
                f"scan: a list of paths has {type(each).__name__} in it; give texts or Paths"
            )
        yield each


def _groups(texts: Sequence[str | Path]) -> Iterator[tuple[Any, str | None, list[str]]]:
    """File system, directory and files: one for each directory, one for consecutive files of a file system."""
    from pyarrow import fs  # noqa: PLC0415 - as above

    runs: list[tuple[Any, list[str]]] = []
    for filesystem, path in locate(map(str, texts)):
        if not runs or not runs[-1][0].equals(filesystem):
            runs.append((filesystem, []))
        runs[-1][1].append(path)
    remaining = iter(texts)
    for filesystem, paths in runs:
        # In one call, so that a store is asked in parallel.
        infos = _asked(filesystem, paths)
        for kind, group in groupby(zip(infos, remaining, strict=False), lambda each: each[0].type):
            if kind == fs.FileType.File:
                yield filesystem, None, [info.path for info, _ in group]
                continue
            for info, text in group:
                if kind == fs.FileType.NotFound:
                    hint = "; give the directory, or a list of files" if "*" in str(text) else ""
                    raise NotFound(f"scan: there is no file or directory {text}{hint}")
                found = _asked(filesystem, fs.FileSelector(info.path, recursive=True))
                if any(each.path.removeprefix(info.path).strip("/") == "_delta_log" for each in found):
                    raise InvalidRequest(
                        f"scan: {text} is a Delta table, and some of its files may be of older versions: give "
                        "deltalake.DeltaTable(...).to_pyarrow_dataset()"
                    )
                files = sorted(
                    each.path
                    for each in found
                    if each.type == fs.FileType.File and each.size != 0 and _seen(each.path, info.path)
                )
                if not files:
                    raise NotFound(f"scan: there is no file with data below {text}")
                yield filesystem, info.path, files


def _asked(filesystem: Any, what: Any) -> list[Any]:
    try:
        return list(filesystem.get_file_info(what))
    except OSError as error:
        raise InvalidRequest(f"scan: {_first_line(error)}") from error


def _seen(path: str, base: str) -> bool:
    return not any(map(_is_hidden, path.removeprefix(base).split("/")))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.endswith("._COPYING_") or (name.startswith("_") and "=" not in name)


def _form(given: Any, paths: list[str]) -> Any:
    from pyarrow import csv  # noqa: PLC0415 - as above
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    if isinstance(given, ds.FileFormat):
        return given
    if given is None:
        kinds = {_kind(path): path for path in reversed(paths)}
        if None in kinds:
            raise InvalidRequest(
                f"scan: the name of {kinds[None]} does not say what it is; give format=, or the files as a list"
            )
        if len(kinds) > 1:
            first, second, *_ = kinds.values()
            raise InvalidRequest(
                f"scan: {second} and {first} are of two kinds; give each kind a scan of its own, or format="
            )
        given = next(iter(kinds))
    name = _NAMES.get(given, given)
    if name not in _FORMATS:
        raise InvalidRequest(f"scan: format is one of {', '.join(_FORMATS)}, not {given!r}")
    if name == "csv":
        return ds.CsvFileFormat(
            # Otherwise a quoted line end where pyarrow cuts the file into blocks is an error.
            csv.ParseOptions(newlines_in_values=True),
            # As Spark: only nothing is null, also in quotes. Pyarrow has more words for null, true and false.
            convert_options=csv.ConvertOptions(
                null_values=[""],
                strings_can_be_null=True,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        )
    made = {
        "parquet": "ParquetFileFormat",
        "ipc": "IpcFileFormat",
        "orc": "OrcFileFormat",
        "json": "JsonFileFormat",
    }
    return getattr(ds, made[name])()


def _kind(path: str) -> str | None:
    name = path.rpartition("/")[2].lower()
    for compression in _COMPRESSIONS:
        if name.removesuffix(compression).endswith((".csv", ".json", ".jsonl", ".ndjson")):
            name = name.removesuffix(compression)
    ending = name.rpartition(".")[2]
    return next((kind for kind, endings in _FORMATS.items() if ending in endings), None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
