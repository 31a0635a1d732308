"""Damage on a disk, and what a server says of it afterwards.

A file of frames or runs begins with JSON that names its dataset; that is all that is known here of its format.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from tests.support.durable import action, files, get

_HEADER_BYTES = 4096
DATABASE = Path("records", "records.db")
LOG = Path("records", "records.db-wal")
WITNESS = Path("records", "witness")


def files_of(data_dir: Path, dataset: str) -> list[Path]:
    """The files that the server made for this dataset."""
    named = re.compile(rb'"dataset": ?' + re.escape(json.dumps(dataset).encode()))
    return [
        path for path in files(data_dir) if path.is_file() and named.search(path.read_bytes()[:_HEADER_BYTES])
    ]


def flip(path: Path, place: int) -> None:
    """Flip a bit of the byte there; a place below zero counts from the end."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def cut(path: Path, size_bytes: int) -> None:
    """Take so many bytes from the end."""
    os.truncate(path, max(0, path.stat().st_size - size_bytes))


def quarantine(client: flight.FlightClient) -> list[dict[str, Any]]:
    """The entries that ``statistics`` lists."""
    listed: list[dict[str, Any]] = action(client, "statistics")["quarantine"]
    return listed


def refusal(client: flight.FlightClient, dataset: str, partition: int = 0) -> dict[str, Any]:
    """The error of a read, which must be a loss of data that names the dataset."""
    with pytest.raises(flight.FlightInternalError, match=f"dataset .{dataset}.") as caught:
        get(client, dataset, partition)
    assert "data loss" in str(caught.value)
    said: dict[str, Any] = json.loads(caught.value.extra_info)
    return said


def is_refused(client: flight.FlightClient, dataset: str) -> bool:
    """Whether a read of it is a loss of data, by the server's word; False if it can be read. Raises other errors, also
    that there is no such dataset.
    """
    try:
        get(client, dataset)
    except flight.FlightInternalError as error:
        if "data loss" in str(error):
            return True
        raise
    return False
