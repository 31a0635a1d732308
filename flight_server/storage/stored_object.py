"""An object outside of the server (``protocol.stored_objects``): written once, and deleted with its dataset.

All methods block, and are called in threads. Every OSError is the storage's. An object is there once ``finish`` has
returned; before that ``remove`` deletes the part that was written. The same address is never written twice at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flight_server.protocol import (
    END_OF_STREAM,
    ObjectIndex,
    Piece,
    StoredPartition,
    encapsulate,
    folder_of,
    index_of,
    is_local,
    object_of,
    wire,
)
from flight_server.protocol.checksums import crc32c

PIECE_BYTES = 4 << 20
_FLUSH_BYTES = 32 << 20
"""So much may wait in the library of an object store."""
_SMALL_BODY_BYTES = 64 << 10


class StoredObject:
    """The object of one generation of a dataset. ``root``: the allowed prefix that ``prefix`` lies below."""

    def __init__(self, prefix: str, root: str, dataset: str, generation: str, start: str) -> None:
        self.prefix = prefix
        self.folder = folder_of(prefix, dataset, generation)
        self.address = object_of(prefix, dataset, generation, start)
        self._root = root
        self._index = ObjectIndex(dataset, generation, start, Piece(0, 0), {})
        self._stream: Any = None
        self.size_bytes = self._flushed_bytes = 0
        self._pieces: list[Piece] = []  # of the present partition, which began at ``_offset``
        self._offset = self._piece_start = self._piece_crc32c = 0

    def begin(self, schema_header: bytes) -> None:
        """Make the folder and write the schema. Raises OSError: also if ``root`` is not there, or a link leads out."""
        files, path = _store_of(self.address)
        if is_local(self.address):
            root = Path(_store_of(self._root)[1])
            if not root.is_dir():
                raise NotADirectoryError(f"there is no directory {root}")
            folder = Path(path).parent
            if not folder.resolve().is_relative_to(root.resolve()):
                raise PermissionError(f"it leads out of {root} by a symbolic link")
            folder.mkdir(parents=True, exist_ok=True)
        self._stream = files.open_output_stream(path)
        self._put(encapsulate(schema_header))
        self._index = self._index._replace(schema=Piece(self.size_bytes, self._piece_crc32c))
        self._offset, self._piece_start, self._piece_crc32c = self.size_bytes, self.size_bytes, 0

    def write(self, messages: Iterable[bytes]) -> None:
        """Append FlightData messages of one partition."""
        small: list[bytes | memoryview] = []
        for message in messages:
            parts = wire.locate(message)
            small.append(encapsulate(parts.header))
            if len(parts.body) < _SMALL_BODY_BYTES:
                small.append(parts.body)
            else:
                self._put(b"".join(small))
                self._put(parts.body)
                small.clear()
        self._put(b"".join(small))
        if self.size_bytes - self._piece_start >= PIECE_BYTES:
            self._end_piece()
        if self.size_bytes - self._flushed_bytes >= _FLUSH_BYTES:
            self._flushed_bytes = self.size_bytes
            self._stream.flush()

    def end_partition(self, number: int, rows: int, frames: int, checksum: int) -> None:
        """All frames of a partition were written; its totals."""
        if self.size_bytes > self._piece_start:
            self._end_piece()
        pieces = tuple(self._pieces)
        self._index.partitions[number] = StoredPartition(number, rows, frames, checksum, self._offset, pieces)
        self._offset = self.size_bytes
        self._pieces.clear()

    def finish(self) -> None:
        """Write the end and the index."""
        self._put(END_OF_STREAM)
        stream, self._stream = self._stream, None
        stream.close()
        files, path = _store_of(index_of(self.address))
        with files.open_output_stream(path) as index:
            index.write(self._index.encode(crc32c))

    def remove(self) -> None:
        """Delete the object, the index first, and its folder if it is empty then. Twice is fine."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()
        for address in (index_of(self.address), self.address):
            files, path = _store_of(address)
            with suppress(FileNotFoundError):
                files.delete_file(path)
        files, path = _store_of(self.folder)
        if is_local(self.folder):
            with suppress(OSError):
                Path(path).rmdir()  # unless another server has an object in it
        elif not files.get_file_info(_selector(path)):
            with suppress(FileNotFoundError):
                files.delete_dir(path)

    def _put(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self.size_bytes += len(data)
        self._piece_crc32c = crc32c(data, self._piece_crc32c)

    def _end_piece(self) -> None:
        self._pieces.append(Piece(self.size_bytes, self._piece_crc32c))
        self._piece_start, self._piece_crc32c = self.size_bytes, 0


def _store_of(address: str) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415  # only a server that offloads needs it

    try:
        store: tuple[Any, str] = fs.FileSystem.from_uri(address)
    except ValueError as error:  # a scheme that Arrow does not know, or wrong options
        raise OSError(str(error)) from None
    return store


def _selector(path: str) -> Any:
    from pyarrow import fs  # noqa: PLC0415  # as above

    return fs.FileSelector(path, allow_not_found=True)
