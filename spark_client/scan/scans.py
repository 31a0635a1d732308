"""A scan: files that are checked and planned in the driver, and read in Spark's tasks.

Guarantee: every row of the dataset that ``filter`` keeps is read by exactly one task, in the order of the files'
paths and of the rows in them; or the pipeline fails with an error that names the file. Rows have the types that Spark
gives to such files (``holdable``).

Fixed at the plan
    :meth:`Scan.plan` lists the files and reads the footers of those that the filter does not exclude. A file that is
    added later is not read; one that was removed, or written again with other numbers of rows or bytes, is an error of
    the task.

Other formats
    CSV, ORC and JSON: a pyarrow Dataset with pyarrow's own options and types, or ``pipeline(spark.read…)``.
    Delta: ``DeltaTable(…).to_pyarrow_dataset()`` of deltalake. Lance: ``lance.dataset(…)``; its fragments are read by
    Lance on the executors. Iceberg: the list of ``urllib.parse.quote(task.file.file_path, ":/")`` over
    pyiceberg's ``table.scan().plan_files()``, if no task has ``delete_files``.

Columns of files
    Files given by path must agree in their columns: the first one says which. Types may differ where no value changes
    (32 and 64 bits, time units). With ``columns`` only those must agree. With ``schema`` that counts,
    in a pyarrow Dataset its schema: then a column that a file lacks is null.

Fewer columns and rows
    A pipeline may turn out to need fewer columns than the scan has, and only rows that a later step keeps
    (:meth:`Scan.with_columns`, :meth:`Scan.with_filter`). Such a scan reads the same files, with the same checks. Of at
    most ``MOST_FOOTERS`` files, footers are read once more to leave out row groups by their statistics.

Types of files
    See ``known_columns``, ``folder_values``, and for Spark's footers ``spark_footers``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest, did_you_mean, shown
from spark_client.arrow import Declared, cannot_fail, kept_share, needed
from spark_client.jobs import (
    arrow_schema,
    batch_limits,
    check_compared,
    declared_struct,
    is_on,
    spark_setting,
    split_sizes,
)

from .discovery import dataset_of
from .file_reading import BATCH_ROWS, FileReading
from .filters import KeptRows, check, expression_of
from .folder_values import FolderRules
from .known_columns import KnownColumns, ReadColumns
from .pieces import FilePiece, driver_bytes, path_of, pieces_of, rows_of, share_of
from .splits import Splits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MOST_FOOTERS = 256


@dataclass(frozen=True)
class Scan:
    """A plan: its schema and splits. ``driver_bytes`` is about what the driver would hold if it read all; None where
    only tasks may: what the driver has not read as they do. ``rows`` are those that tasks look at, None
    where the files do not tell; ``kept`` is a guess of the filter's part. ``dataset`` is read, in which columns have
    the types of ``schema``.
    """

    what: str
    struct: StructType
    declared: Declared
    splits: Splits
    driver_bytes: int | None
    rows: int | None
    kept: float
    dataset: Any
    schema: pa.Schema
    narrowed: str = ""
    """How it differs from the scan that the user has written, in words."""

    def __str__(self) -> str:
        return f"scan({self.what}, {_count(len(self.splits), 'task')}){self.narrowed}"

    @classmethod
    def plan(
        cls,
        spark: SparkSession,
        what: Any,
        *,
        columns: Any = None,
        filter: Any = None,  # noqa: A002 - pyarrow's name
        schema: Any = None,
    ) -> Scan:
        from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

        is_dataset = isinstance(what, ds.Dataset)
        if not is_dataset and not isinstance(what, str | Path | list | tuple):
            raise InvalidRequest(
                f"scan takes a path, an address, a list of them or a pyarrow.dataset.Dataset, not {type(what).__name__}"
            )
        if is_dataset and schema is not None:
            raise InvalidRequest("scan: a Dataset has a schema; give schema= to pyarrow.dataset.dataset")
        if schema is None:
            dataset = what if is_dataset else dataset_of(what, _folder_rules(spark))
            known = KnownColumns.of_dataset(dataset, by_user=is_dataset)
        else:
            known = KnownColumns.of_schema(spark, schema)
            types = dict(zip(known.schema.names, known.schema.types, strict=True))
            dataset = dataset_of(what, _folder_rules(spark), types)
            known = known.with_folders(dataset)
        names = _names(columns, known.schema)
        where = "the scan"
        expression = expression_of(filter, known.schema)
        needed_by = [] if expression is None else needed(expression, known.schema)
        read = list(dict.fromkeys([*names, *needed_by]))
        struct = declared_struct(spark, known.struct(read, where), where)
        declared = Declared(where, arrow_schema(spark, struct, where))
        if expression is not None:
            check(expression, declared.schema)
            check_compared(
                struct, declared.schema, expression, "scan: filter", "give schema= with it as string"
            )
        read_columns = ReadColumns(declared, tuple(names), known.origin, known.lenient, columns is None)
        homes, pieces = pieces_of(dataset, known.schema, read_columns, expression)
        limits = batch_limits(spark)
        # Stages cut what functions get (``steps.one_pass``); ours take as long for a small batch as for a large one.
        rows = max(limits.rows, BATCH_ROWS)
        reading = FileReading(
            homes,
            read_columns,
            None if expression is None else KeptRows.by(expression, declared.schema, names),
            rows,
        )
        splits = Splits.of(pieces, split_sizes(spark), reading)
        fields = {field.name: field for field in struct}
        shown = StructType([fields[name] for name in names])
        return cls(
            _describe(what),
            shown,
            Declared(where, pa.schema([declared.schema.field(name) for name in names])),
            splits,
            driver_bytes(homes, pieces, len(read)),
            rows_of(pieces),
            kept_share(expression),
            dataset,
            known.schema,
        )

    def with_columns(self, spark: SparkSession, names: Sequence[str]) -> Scan:
        """The same rows with fewer columns."""
        shown = f", {len(names)} of {len(self.struct)} columns: {', '.join(map(repr, names))}"
        return self._with(spark, names, self.splits.reading.filter, self._pieces(), shown)

    def with_filter(self, spark: SparkSession, expression: Any, name: str) -> Scan | None:
        """Those of the rows for which the expression, which is repeatable and fits them, is true; None if it could fail
        for a row that the scan's own filter leaves out.
        """
        own = self.splits.reading.filter
        whole = expression
        if own is not None:
            if not cannot_fail(expression, self.declared.schema):
                return None
            whole = own.expression & expression
        names = self.struct.names
        rows = KeptRows.by(whole, self.splits.reading.columns.declared.schema, names)
        return self._with(spark, names, rows, self._kept_pieces(whole), f", with {name}")

    def _pieces(self) -> Iterator[FilePiece]:
        """All of them; a file that several splits share is one object again."""
        last: Any = None
        for number in range(len(self.splits)):
            for piece in self.splits.pieces(number):
                last = last if piece.file == last else piece.file
                yield replace(piece, file=last)

    def _kept_pieces(self, expression: Any) -> Iterable[FilePiece]:
        """Those that may have rows for which the expression is true. What cannot be told, tasks see."""
        pieces = list(self._pieces())
        files = len({path_of(piece)[0] for piece in pieces})
        if len(pieces) < 2 or files > MOST_FOOTERS:
            return pieces
        reading = self.splits.reading
        columns = replace(reading.columns, every=False)
        with suppress(InvalidRequest, OSError):
            _, kept = pieces_of(self.dataset, self.schema, columns, expression)
            places = {path_of(piece) for piece in kept}
            return [piece for piece in pieces if path_of(piece) in places]
        return pieces

    def _with(
        self,
        spark: SparkSession,
        names: Sequence[str],
        rows: KeptRows | None,
        pieces: Iterable[FilePiece],
        narrowed: str,
    ) -> Scan:
        reading = self.splits.reading
        columns = reading.columns
        read = {*names, *(rows.looked_at if rows is not None else ())}
        fields = [field for field in columns.declared.schema if field.name in read]
        share = share_of(self.dataset, [field.name for field in fields], columns.declared.schema.names)
        has_lists = any(pa.types.is_nested(field.type) for field in fields)
        pieces = [
            replace(piece, size_bytes=int(piece.size_bytes * share), values=piece.values if has_lists else 0)
            for piece in pieces
        ]
        kept = replace(
            reading,
            columns=replace(
                columns,
                declared=replace(columns.declared, schema=pa.schema(fields)),
                names=tuple(names),
                every=False,
            ),
            filter=None if rows is None else replace(rows, names=tuple(names)),
        )
        of_names = {field.name: field for field in self.struct}
        return replace(
            self,
            struct=StructType([of_names[name] for name in names]),
            declared=replace(
                self.declared, schema=pa.schema([self.declared.schema.field(name) for name in names])
            ),
            splits=Splits.of(pieces, split_sizes(spark), kept),
            driver_bytes=driver_bytes(reading.homes, pieces, len(fields)),
            rows=rows_of(pieces),
            kept=kept_share(None if rows is None else rows.expression),
            narrowed=self.narrowed + narrowed,
        )


def _folder_rules(spark: SparkSession) -> FolderRules:
    def instants(texts: Sequence[str]) -> Sequence[int]:
        # By Spark itself, whose zones have names that Python does not know. The texts have no quotes.
        times = ", ".join(f"unix_micros(CAST('{text}' AS TIMESTAMP_LTZ))" for text in texts)
        return list(spark.sql(f"SELECT array({times})").collect()[0][0])

    zone = None if spark_setting(spark, "spark.sql.timestampType") == "TIMESTAMP_NTZ" else "UTC"
    infers = is_on(spark, "spark.sql.sources.partitionColumnTypeInference.enabled")
    return FolderRules(infers, pa.timestamp("us", zone), instants)


def _names(columns: Any, schema: pa.Schema) -> list[str]:
    twice = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if twice:
        raise InvalidRequest(f"scan: the files have {', '.join(map(repr, twice))} twice", column=twice[0])
    if columns is None:
        return list(schema.names)
    are_names = isinstance(columns, Collection) and all(isinstance(name, str) for name in columns)
    if isinstance(columns, str) or not are_names:
        raise InvalidRequest(f"scan: columns is a list of names, not {columns!r}")
    names = list(columns)
    if not names:
        raise InvalidRequest("scan: columns names no column; name at least one, or leave it out for all")
    again = sorted(name for name, count in Counter(names).items() if count > 1)
    if again:
        raise InvalidRequest(f"scan: columns names {', '.join(again)} twice; name each once", column=again[0])
    known = set(schema.names)
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidRequest(
            f"scan: no column {', '.join(map(repr, missing))}; there are {', '.join(map(repr, schema.names))}"
            f"{did_you_mean(missing[0], schema.names)}",
            column=missing[0],
        )
    return names


def _describe(what: Any) -> str:
    if isinstance(what, list | tuple):
        return _count(len(what), "path")
    return repr(shown(str(what))) if isinstance(what, str | Path) else type(what).__name__


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
