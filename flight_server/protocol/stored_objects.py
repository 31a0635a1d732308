"""Objects outside of the servers: how they are named, and the index that says what is in one.

What one server holds of a dataset can be kept as one object in shared storage, with an index beside it:

    PREFIX/DATASET-GENERATION/START.arrows   an Arrow IPC stream: the schema, then the frames, partition by partition;
                                             each partition brings the dictionaries that it needs
    PREFIX/DATASET-GENERATION/START.json     the index, which is written last: without it there is no object

A slash in the dataset's name is ``~``. PREFIX is an address with a scheme, ``s3://bucket/path``, or ``file:///path`` of
a directory. Options may follow, ``?region=…``: they then follow each name below it, too. ``START`` is that of the
server (``datasets.generations``). Neither file is ever changed.

The index
    {"index": {"dataset", "generation", "start", "schema": [end, crc32c],
               "partitions": [[number, rows, frames, crc32c, offset, [[end, crc32c], …]], …]}, "crc32c": "…"}

    Of each partition with frames: its totals, as a reader gets them from the server (``checksums``), the offset of its
    first message, and the ends and CRC-32C of the pieces that follow one another from there. A piece has whole
    messages. The last value is the CRC-32C of the text of ``index``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self
from urllib.parse import quote, unquote

from .errors import Forbidden, InvalidRequest
from .shown_addresses import shown
from .strict_json import dump_json, parse_json

OBJECT_SUFFIX = ".arrows"
INDEX_SUFFIX = ".json"
_MAX_CHARACTERS = 1000
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_FILE = re.compile(r"file://(localhost)?(?=/)")
_OF_FILES = "file://"


def check_prefix(prefix: object, what: str) -> str:
    """The address of a prefix, given as that or as a path, in the form in which two are compared. ``what`` names it in
    errors.

    Raises:
        InvalidRequest: it is neither an absolute path nor an address of a scheme with a place, has an element ``..``,
            ``.`` or none, or a password, which belongs to the environment of the processes.
    """
    text = prefix if isinstance(prefix, str) else ""
    if (match := _FILE.match(text)) is not None:
        text = unquote(text[match.end() :])
    if text.startswith("/") and text.isprintable():  # not with bytes that are no text
        text = _OF_FILES + quote(text)
    place, options = _split(text)
    scheme = _SCHEME.match(place)
    elements = place[scheme.end() :].removeprefix("/").rstrip("/").split("/") if scheme else []
    wrong = not scheme or len(text) > _MAX_CHARACTERS or not text.isprintable() or "#" in text
    if wrong or not {"", ".", ".."}.isdisjoint(elements):
        raise InvalidRequest(
            f"{what} is a directory's absolute path or an address such as s3://bucket/path, not "
            f"{shown(str(prefix))[:200]!r}"
        )
    if shown(place) != place:
        raise InvalidRequest(
            f"{what}: {shown(text)} has a user or a password in it: leave it out, each process takes credentials from "
            "its environment"
        )
    return place.rstrip("/") + options


def check_allowed(prefix: str, allowed: Iterable[str]) -> str:
    """The first of the allowed prefixes that this one is, or lies below with the same options; all as
    :func:`check_prefix` says. Raises Forbidden: there is none.
    """
    allowed = list(allowed)
    place, options = _split(prefix)
    for each in allowed:
        root, root_options = _split(each)
        if options == root_options and f"{place}/".startswith(f"{root}/"):
            return each
    may = ", ".join(map(shown, allowed)) or "nothing: it was started without --offload-to"
    raise Forbidden(f"nothing is offloaded to {shown(prefix)!r}: the server may write below {may}")


def is_local(address: str) -> bool:
    """Whether it is of a directory."""
    return address.startswith(_OF_FILES)


def below(prefix: str, *names: str) -> str:
    """The address of a name below a prefix or a folder."""
    place, options = _split(prefix)
    return "/".join((place, *names)) + options


def folder_of(prefix: str, dataset: str, generation: str) -> str:
    """Where the objects of one generation of a dataset are."""
    return below(prefix, f"{dataset.replace('/', '~')}-{generation}")


def object_of(prefix: str, dataset: str, generation: str, start: str) -> str:
    """The address of what the server of this start holds of it."""
    return below(folder_of(prefix, dataset, generation), start + OBJECT_SUFFIX)


def index_of(address: str) -> str:
    """The address of an object's index."""
    place, options = _split(address)
    return place.removesuffix(OBJECT_SUFFIX) + INDEX_SUFFIX + options


def is_object(location: str) -> bool:
    """Whether a location is that of an object, not of a server."""
    return _split(location)[0].endswith(OBJECT_SUFFIX)


def _split(address: str) -> tuple[str, str]:
    """An address without its options, and these with their question mark."""
    place, mark, options = address.partition("?")
    return place, mark + options


class Piece(NamedTuple):
    """Where a piece of an object ends, and the CRC-32C of its bytes."""

    end: int
    crc32c: int


class StoredPartition(NamedTuple):
    """A partition with frames in an object, see the module's text."""

    number: int
    rows: int
    frames: int
    crc32c: int
    offset: int
    pieces: tuple[Piece, ...]


class ObjectIndex(NamedTuple):
    """What an object has, see the module's text."""

    dataset: str
    generation: str
    start: str
    schema: Piece
    partitions: dict[int, StoredPartition]

    def encode(self, crc32c: Callable[[bytes], int]) -> bytes:
        """The text of the index file."""
        listed = self._replace(partitions=[*self.partitions.values()])  # type: ignore[arg-type] # as JSON has it
        index = listed._asdict()
        return dump_json({"index": index, "crc32c": f"{crc32c(dump_json(index)):08x}"})

    @classmethod
    def parse(cls, text: bytes, crc32c: Callable[[bytes], int]) -> Self:
        """Raises ValueError: it is damaged."""
        try:
            body = parse_json(text, "the index")
            index: dict[str, Any] = body["index"]
            if f"{crc32c(dump_json(index)):08x}" != body["crc32c"]:
                raise ValueError("it has another checksum")
            partitions = [
                StoredPartition(
                    number, rows, frames, checksum, offset, tuple(Piece(*each) for each in pieces)
                )
                for number, rows, frames, checksum, offset, pieces in index.pop("partitions")
            ]
            return cls(
                **index | {"schema": Piece(*index["schema"])},
                partitions={each.number: each for each in partitions},
            )
        except (InvalidRequest, KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(str(wrong)) from None
