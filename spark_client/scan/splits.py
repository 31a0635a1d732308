"""The splits of a scan: consecutive pieces for each task, and the code with which a task reads its own.

Guarantee: :meth:`Splits.read` gives every row of the split's pieces that the filter keeps, in order, in the declared
schema, or raises an error that names the file.

Splits are the driver's plan as a value that is pickled into every task: paths, numbers and the file systems as
pyarrow pickles them, some 10 to 250 bytes for each file and row group. A task unpacks only its own split.

Sizes
    A task's pieces have about the same bytes, because a task takes those whose middles lie in its share of all bytes;
    so it reads at most its share and one piece. Small files are read together: each counts ``open_bytes`` more.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from flight_server.protocol import InvalidRequest
from spark_client.jobs import SplitSizes
from spark_client.spill import TaskMemory

from .file_reading import FileReading
from .pieces import FilePiece


@dataclass(frozen=True)
class Splits:
    """The pieces that each task reads, and how. There is at least one split, which may be empty; each is ``packed``."""

    packed: tuple[bytes, ...]
    reading: FileReading

    @classmethod
    def of(cls, pieces: Sequence[FilePiece], sizes: SplitSizes, reading: FileReading) -> Splits:
        """The pieces in their order, in splits. Raises InvalidRequest: a file system or fragment cannot be sent to
        tasks.
        """
        try:
            pickle.dumps(reading)
            # Each file is in it once, and is one object again.
            shares = (pickle.dumps(list(share)) for share in _shared_out(pieces, sizes))
            return cls(tuple(zlib.compress(share, 1) for share in shares), reading)
        except Exception as error:
            raise InvalidRequest(
                f"scan: what this dataset reads cannot be sent to tasks ({error}); write it to files, or make a "
                "DataFrame of it"
            ) from error

    def __len__(self) -> int:
        return len(self.packed)

    def pieces(self, number: int) -> list[FilePiece]:
        pieces: list[FilePiece] = pickle.loads(zlib.decompress(self.packed[number]))  # noqa: S301 - the driver's own
        return pieces

    def read(self, number: int, memory: TaskMemory | None = None) -> Iterator[Any]:  # noqa: ARG002 - of a source
        """The batches of one split; :class:`~spark_client.jobs.ReadTask` calls it in a task."""
        # By the object, because a file that was given twice is read twice.
        for _, group in groupby(self.pieces(number), lambda piece: id(piece.file)):
            pieces = list(group)
            yield from self.reading.read(pieces[0].file, pieces)


def _shared_out(pieces: Sequence[FilePiece], sizes: SplitSizes) -> tuple[tuple[FilePiece, ...], ...]:
    costs = []
    before: Any = None
    for piece in pieces:
        costs.append(piece.size_bytes + (sizes.open_bytes if piece.file is not before else 0))
        before = piece.file
    total = sum(costs)
    tasks = sizes.tasks(total)
    shares: list[list[FilePiece]] = [[] for _ in range(tasks)]
    start = 0
    for piece, cost in zip(pieces, costs, strict=True):
        shares[min(tasks - 1, (2 * start + cost) * tasks // (2 * max(1, total)))].append(piece)
        start += cost
    # A piece larger than a task's share leaves the next ones without any.
    return tuple(tuple(each) for each in shares if each) or ((),)
