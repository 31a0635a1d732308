"""FileSource: a dataset of files, one partition for each, in the order of their resolved paths.

Guarantee: the files, their identities and the schema are those of the moment of opening. A pull fails with
SourceChanged if its file's identity is another one before or after the reading. Rows come in the file's order, as
messages of about ``encoder.TARGET_BYTES``.

    {"format": "parquet" | "ipc", "path": a file or directory, "columns": ["…", …]}

Schema
    The union of the files' columns, null where a file lacks one. ``pyarrow.unify_schemas`` widens their types (int64
    and double to double); a value that the type cannot hold fails its pull. Directories named ``key=value`` in the
    files' paths add a column each (integers if all values are, else text), unless the files have it.

Memory
    A batch of an IPC file is counted in ``memory.Decoding`` while it is read and sent, twice, because it may be cast;
    one beyond its limit is refused. No account counts the batches of a pull of another format (``formats``), and the
    message that is being made.

Cancelling
    A thread's present step runs to its end; then the file is closed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NoReturn, Self
from urllib.parse import unquote

import pyarrow as pa

from flight_server.datasets import Totals
from flight_server.frames import Checked, Encoder, SchemaMessage, check_text, measure
from flight_server.protocol import (
    MAX_PARTITIONS,
    Body,
    Fields,
    FlightShuffleError,
    InJson,
    InvalidRequest,
    PartitionFailed,
    SourceUnavailable,
    did_you_mean,
)

from .file_places import FilePlaces, OpenFile
from .formats import FORMATS, Format
from .pulls import Pulling, SourceChanged

FILE_BYTES = 1024
"""One file of a source: its record, identity, keys and the string of its path."""
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HIVE_KEY = re.compile(r"(?P<key>[^=]+)=(?P<value>.*)")
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def _format(fields: Fields, key: str) -> Format:
    name = str(fields.required(key))
    if name not in FORMATS:
        raise InvalidRequest(f"source: 'format' is one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name]


def _columns(fields: Fields, key: str) -> tuple[str, ...] | None:
    value = fields.any(key)
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise InvalidRequest(f"source: {key!r} must be a list of at least one text, not {value!r}")
    if len(set(value)) != len(value):
        raise InvalidRequest(f"source: {key!r} names something twice")
    return tuple(value)


@dataclass(frozen=True)
class FileSpec(Body, what="source"):
    """The ``source`` of a ``create``."""

    format: Annotated[Format, InJson(_format)]
    path: Annotated[str, InJson(lambda fields, key: str(fields.required(key)))]
    columns: Annotated[tuple[str, ...] | None, InJson(_columns)] = None


@dataclass(frozen=True)
class _File:
    """One partition, as it was when the source was opened."""

    path: str
    identity: tuple[int, ...]
    schema: pa.Schema
    keys: dict[str, str | None]


class FileSource:
    """The files of one source, as they were at the moment of opening."""

    def __init__(
        self, spec: FileSpec, places: FilePlaces, files: list[_File], schema: pa.Schema, pulling: Pulling
    ) -> None:
        self.schema = SchemaMessage.of(schema)
        self.partition_count = len(files)
        self.held_bytes = _held_bytes(files)
        self._spec = spec
        self._places = places
        self._files = files
        self._pulling = pulling

    @classmethod
    async def open(cls, source: dict[str, Any], pulling: Pulling) -> Self:
        """Look at every file once, in a thread.

        Raises:
            InvalidRequest: there are no files, one is not of the format, or their schemas do not fit.
            Forbidden: see ``file_places``.
            SourceUnavailable: one cannot be read.
        """
        spec, places = FileSpec.of(source), FilePlaces(pulling.roots, s3=pulling.s3)
        files, schema = await pulling.background.in_thread(_look, spec, places)
        return cls(spec, places, files, schema, pulling)

    def describe(self, index: int) -> str:
        return self._files[index].path

    async def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        async with self._pulling.background.slots:
            messages = self._messages(self._files[index])
            while (pulled := await self._pulling.background.in_thread(next, messages, None)) is not None:
                yield pulled
                del pulled

    def _messages(self, file: _File) -> Iterator[Checked]:
        try:
            opened = self._places.open(file.path)
        except FileNotFoundError:
            raise SourceChanged(f"{file.path} is gone") from None
        except OSError as error:
            raise SourceUnavailable(f"{file.path} cannot be opened: {error.strerror or error}") from None
        try:
            _check_identity(file, opened)
            encoder = Encoder(self.schema.schema, max_message_bytes=self._pulling.max_message_bytes)
            yield from encoder.encode(self._batches(file, opened))
            _check_identity(file, opened)
        except FlightShuffleError as error:
            raise type(error)(f"{file.path}: {error.message}", **error.detail) from None
        except (pa.ArrowException, OSError, ValueError) as error:
            _check_identity(file, opened)
            _raise_read_error(file.path, error)
        finally:
            opened.close()

    def _batches(self, file: _File, opened: OpenFile) -> Iterator[pa.RecordBatch]:
        schema = self.schema.schema
        in_file = frozenset(file.schema.names)
        inside = pa.schema([field for field in schema if field.name in in_file])
        keys = {
            field.name: pa.scalar(file.keys.get(field.name), pa.string()).cast(field.type)
            for field in schema
            if field.name not in in_file
        }
        with self._pulling.budget.decoding.holding() as hold:
            for batch in self._spec.format.batches(opened.stream, inside, hold):
                batch.validate(full=self._pulling.full_validation)
                if batch.schema.equals(schema):
                    yield batch
                    continue
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in in_file
                    else pa.repeat(keys[field.name], batch.num_rows)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_identity(file: _File, opened: OpenFile) -> None:
    try:
        same = opened.identity() == file.identity
    except FileNotFoundError:
        same = False
    except OSError as error:
        raise SourceUnavailable(f"{file.path} cannot be read: {error.strerror or error}") from None
    if not same:
        raise SourceChanged(f"{file.path} was written again since this generation was opened")


def _raise_read_error(path: str, error: Exception) -> NoReturn:
    # Arrow raises OSError also for pages that do not decompress; only errors of the system have an errno.
    if isinstance(error, OSError) and error.errno is not None:
        raise SourceUnavailable(f"{path} cannot be read: {error.strerror or error}") from None
    raise PartitionFailed(f"{path} is damaged: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


# Opening


def _look(spec: FileSpec, places: FilePlaces) -> tuple[list[_File], pa.Schema]:
    paths = places.files(spec.path)
    if not paths:
        raise InvalidRequest(f"source: there is no file below {spec.path}")
    if len(paths) > MAX_PARTITIONS:
        raise InvalidRequest(
            f"source: {len(paths)} files are more than the {MAX_PARTITIONS} partitions that a dataset may have"
        )
    files: list[_File] = []
    for path in paths:
        file = _look_at(spec, places, path)
        # Most files have the schema of the one before, which is held once.
        if files and file.schema.equals(files[-1].schema, check_metadata=True):
            file = replace(file, schema=files[-1].schema)
        files.append(file)
    schema = _unified(files)
    if spec.columns is not None:
        known = frozenset(schema.names)
        for name in spec.columns:
            if name not in known:
                raise InvalidRequest(
                    f"source: there is no column {name!r}; there are {schema.names}{did_you_mean(name, schema.names)}"
                )
        schema = pa.schema([schema.field(name) for name in spec.columns], schema.metadata)
    return files, schema


def _look_at(spec: FileSpec, places: FilePlaces, path: str) -> _File:
    try:
        opened = places.open(path)
    except OSError as error:
        raise SourceUnavailable(f"source: {path} cannot be opened: {error.strerror or error}") from None
    try:
        identity = opened.identity()
        schema = spec.format.schema(opened.stream)
        check_text(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"source: {path} cannot be read: {_first_line(error)}") from None
    finally:
        opened.close()
    if len(set(schema.names)) != len(schema.names):
        raise InvalidRequest(f"source: {path} has two columns of one name")
    keys = [matched for part in path.split("/")[:-1] if (matched := _HIVE_KEY.fullmatch(part))]
    return _File(path, identity, schema, {each["key"]: _hive_value(each["value"]) for each in keys})


def _hive_value(text: str) -> str | None:
    return None if text == _HIVE_NULL else unquote(text)


def _held_bytes(files: Sequence[_File]) -> int:
    """Of each file its record and path, and of each schema among them Arrow's objects."""
    headers = [SchemaMessage.of(schema).header for _, schema in _different_schemas(files)]
    paths_bytes = sum(len(file.path) for file in files)
    return len(files) * FILE_BYTES + paths_bytes + sum(measure(each).object_bytes for each in headers)


def _different_schemas(files: Sequence[_File]) -> list[tuple[str, pa.Schema]]:
    """Each schema, with the first file that has it."""
    different: dict[int, tuple[str, pa.Schema]] = {}
    for file in files:
        different.setdefault(id(file.schema), (file.path, file.schema))
    return list(different.values())


def _unified(files: Sequence[_File]) -> pa.Schema:
    schemas = _different_schemas(files)
    first, together = schemas[0]
    for path, schema in schemas[1:]:
        if not schema.equals(together):
            try:
                together = pa.unify_schemas([together, schema], promote_options="permissive")
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise InvalidRequest(
                    f"source: the columns of {path} do not fit those of {first}: {_first_line(error)}"
                ) from None
    # A column stays not nullable only if every schema has it so.
    always = Counter(field.name for _, schema in schemas for field in schema if not field.nullable)
    fields = [field.with_nullable(always[field.name] < len(schemas)) for field in together]
    for key in dict.fromkeys(key for file in files for key in file.keys):
        if key not in together.names:
            values = [value for file in files if (value := file.keys.get(key)) is not None]
            numbers = bool(values) and all(map(_INTEGER.fullmatch, values))
            fields.append(pa.field(key, pa.int64() if numbers else pa.string()))
    return pa.schema(fields, together.metadata)
