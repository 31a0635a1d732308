"""The content of a broadcast: a sealed dataset, and how a host's file of it is written and read.

The file is an Arrow IPC stream, because dictionaries may differ from batch to batch. It is not compressed, so that
tasks read it in the mapping. Messages that came whole and uncompressed on the bulk lane, with their checksums
compared, are written as they came, while the next ones are received; others are encoded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from flight_server.protocol import END_OF_STREAM, NotFound, PartitionFailed, ipc_framing
from spark_client.arrow import has_dictionary
from spark_client.hosts import Copies, HostFile, HostFiles, Part
from spark_client.jobs import Readable
from spark_client.lanes import BatchRun


@dataclass(frozen=True)
class Content:
    """The dataset of a broadcast, and its totals."""

    name: str
    source: Readable
    schema: pa.Schema
    rows: int
    size_bytes: int
    application: str
    copies: Copies

    @property
    def key(self) -> str:
        """The name of a host's file, unique to this driver and content."""
        source = self.source
        text = f"{source.server.location}\n{source.dataset}\n{source.generation}"
        return f"{self.application}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def fetch(self, part: Part) -> None:
        """Write the content to a file, or raise ``NotFound``."""
        try:
            self._fetch(part)
        except NotFound as error:
            raise self.gone(error) from error

    def gone(self, error: NotFound) -> NotFound:
        """The error with the broadcast's name."""
        restarted = error.detail.get("restarted")
        why = "its server was restarted" if restarted else "it was destroyed, or its driver has ended"
        return NotFound(f"broadcast {self.name!r} is gone: {why} ({error.message})", **error.detail)

    def _fetch(self, part: Part) -> None:
        with closing(self.source.stream(0)) as stream, ThreadPoolExecutor(1) as writing:
            if any(has_dictionary(field.type) for field in self.schema):
                with pa.ipc.new_stream(pa.PythonFile(part, mode="w"), self.schema) as writer:
                    while (run := stream.read_run()) is not None:
                        for batch in run.batches:
                            writer.write_batch(batch)
                return
            part.write(self.schema.serialize())
            written: Future[None] | None = None
            while (run := stream.read_run()) is not None:
                if written is not None:
                    written.result()
                written = writing.submit(_write, part, run)
            if written is not None:
                written.result()
            part.write(END_OF_STREAM)

    def map(self, file: HostFile) -> pa.Table:
        """The table in a file that ``fetch`` wrote, mapped without a copy.

        Raises:
            PartitionFailed: the file, now removed, has another number of rows, which only a crash of the host can
                cause.
        """
        table = pa.ipc.open_stream(pa.BufferReader(file.map())).read_all()
        if table.num_rows != self.rows:
            HostFiles(self.copies).remove(self.key)
            raise PartitionFailed(
                f"{file.path} has {table.num_rows} rows, the broadcast {self.name!r} has {self.rows}: the file "
                "was removed, and is fetched again at the next try"
            )
        return table


def _write(part: Part, run: BatchRun) -> None:
    for message in _messages(run):
        part.write(message)


def _messages(run: BatchRun) -> Iterator[memoryview | pa.Buffer]:
    encoded = run.encoded
    if encoded is not None and not any(map(ipc_framing.is_compressed, ipc_framing.headers(encoded))):
        yield encoded
        return
    for batch in run.batches:
        yield batch.serialize()
