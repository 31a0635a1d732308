"""The columns that a scan reads of each file, and the check that a file has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared

GIVEN = "schema="
"""The origin of columns that the user names."""
_DRIFT = "name the columns that are meant, and their types, with schema=: where a file lacks one, it is null"


@dataclass(frozen=True)
class WantedColumns:
    """The columns that every file must give.

    Args:
        declared: the columns to read, those of the filter among them, in Spark's Arrow types.
        names: the columns of the result.
        origin: where the schema is from, for errors.
        lenient: a column that a file does not have is null there, as in a Dataset with a schema of its own.
        every: all columns of the files are wanted, so a file with more of them is an error.
    """

    declared: Declared
    names: tuple[str, ...]
    origin: str
    lenient: bool
    every: bool

    def of(self, path: str) -> Declared:
        """The declaration, under the file's name."""
        return replace(self.declared, stage=f"file {path}")

    def check(self, path: str, schema: pa.Schema, values: Collection[str]) -> None:
        """Check that a file of this schema, with ``values`` of its partition, can be read. Raises InvalidRequest: a
        column is missing, there twice or of another kind, or, with ``every``, there are more.
        """
        wanted, counts = self.declared.schema, Counter(schema.names)
        known = set(wanted.names)
        missing = [name for name in wanted.names if name not in counts and name not in values]
        folded = {name.casefold(): name for name in schema.names} if missing else {}
        for name in missing:
            if name.casefold() in folded:
                raise InvalidRequest(
                    f"scan: {path} has no column {name!r}, which {self.origin} names, but {folded[name.casefold()]!r}; "
                    "names of a scan's columns count exactly: give schema= with that one, or a scan to the files of "
                    "each name",
                    column=name,
                    file=path,
                )
        if missing and not self.lenient:
            raise InvalidRequest(
                f"scan: {path} has no column {', '.join(map(repr, missing))}, but {self.origin} has; {_DRIFT}",
                column=missing[0],
                file=path,
            )
        more = [name for name in schema.names if name not in known]
        if more and self.every and not self.lenient:
            raise InvalidRequest(
                f"scan: {path} has a column {', '.join(map(repr, more))}, but {self.origin} has not; {_DRIFT}",
                column=more[0],
                file=path,
            )
        twice = [name for name in wanted.names if counts[name] > 1 and name not in values]
        if twice:
            raise InvalidRequest(
                f"scan: {path} has column {', '.join(map(repr, twice))} twice; leave it out with columns=",
                column=twice[0],
                file=path,
            )
        read = [name for name in wanted.names if counts[name] and name not in values]
        there = pa.schema([schema.field(name) for name in read])
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in there.types], schema=there)
        for name in read:
            if there.field(name).type == pa.float64() and wanted.field(name).type == pa.float32():
                raise InvalidRequest(
                    f"scan: {path} has column {name!r} as double, but {self.origin} as float, "
                    "which would round it; give schema= with double",
                    column=name,
                    file=path,
                )
        try:
            replace(self.declared, schema=pa.schema([wanted.field(name) for name in read])).cast(nothing)
        except InvalidRequest as error:
            name = str(error.detail["column"])
            remedy = (
                "give it a type of the files' kind there, and cast it in a step"
                if self.origin == GIVEN
                else "give the files of each kind a scan of their own, or leave it out with columns="
            )
            raise InvalidRequest(
                f"scan: {path} has column {name!r} as {there.field(name).type}, but {self.origin} as "
                f"{wanted.field(name).type}; {remedy}",
                column=name,
                file=path,
            ) from error
