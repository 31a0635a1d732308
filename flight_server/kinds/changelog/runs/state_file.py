"""StateFile: the manifest of a changelog, one JSON object that is replaced as a whole.

Format
    ``changelog``: 8 bytes magic "FLSHCLG1", u32 length and u32 CRC-32C of the rest, UTF-8 JSON (see ``journal``).
    Little-endian.

Guarantee: a crash at any point leaves the old object or the new one: a new one is written under another name, synced,
and renamed. A file whose magic or CRC is wrong is damaged.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

from flight_server.protocol.checksums import crc32c
from flight_server.records import DiskTrouble, OtherFormat, trouble_with
from flight_server.storage import read_regular, sync_directory, write_file

from .run import Damaged

STATE_NAME: Final = "changelog"
UNFINISHED_NAME: Final = "changelog.new"
MAGIC: Final = b"FLSHCLG1"

_HEAD = struct.Struct("<8sII")


class Uncertain(DiskTrouble):
    """The old object or the new one is there after a crash."""


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Replace the object. Blocks until it is on the medium.

    Raises:
        Uncertain: see there.
        DiskTrouble: the old object is there.
    """
    text = json.dumps(state, separators=(",", ":")).encode()
    try:
        write_file(directory / UNFINISHED_NAME, _HEAD.pack(MAGIC, len(text), crc32c(text)) + text)
    except OSError as error:
        raise trouble_with(directory, error) from error
    try:
        (directory / UNFINISHED_NAME).rename(directory / STATE_NAME)
        sync_directory(directory)
    except OSError as error:
        trouble = trouble_with(directory, error)
        raise Uncertain(str(trouble), full=trouble.full) from error


def read_state(directory: Path) -> dict[str, Any]:
    """The object. Blocks.

    Raises:
        Damaged: the file is not valid.
        OtherFormat: another version wrote it.
        FileNotFoundError, NotAFile, OSError: see :func:`~flight_server.storage.read_regular`.
    """
    data = read_regular(directory / STATE_NAME)
    if len(data) >= _HEAD.size:
        magic, length, checksum = _HEAD.unpack_from(data)
        text = data[_HEAD.size :]
        if magic == MAGIC and length == len(text) and crc32c(text) == checksum:
            try:
                state: dict[str, Any] = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise Damaged(f"{STATE_NAME} is not JSON") from error
            return state
        if magic[:7] == MAGIC[:7] and magic != MAGIC and length == len(text) and crc32c(text) == checksum:
            raise OtherFormat(
                f"{directory} has a changelog of format {magic.decode('ascii', 'replace')}, and this version reads "
                f"{MAGIC.decode()}: start the version that wrote it; nothing was changed"
            )
    raise Damaged(f"{STATE_NAME} of {len(data)} bytes is not valid")
