"""Files of a Delta table, committed by ``deltalake``: its add actions, in one transaction.

A table that is made, or written, has the columns of the pipeline, of the same types. Where the table does not allow
nulls, tasks check it. What else a table asks of its writers, as constraints and generated columns, tasks do not do:
such a table is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest

from .file_stage import FileLayout, WrittenFile
from .storage_place import Place
from .stored_types import layout_of
from .table_files import WRITE_ID, TableFiles, imported

_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity")


@dataclass(frozen=True)
class DeltaFiles(TableFiles):
    """The table at an address; ``options`` are for ``deltalake``."""

    kind = "delta"

    address: str
    options: Mapping[str, str] | None = None
    folders: tuple[str, ...] = ()
    schema: Any = field(default=None, repr=False)
    """The columns in ``deltalake``'s types."""

    @classmethod
    def of(cls, path: str | Path, mode: str, where: str, options: Mapping[str, str] | None) -> DeltaFiles:
        """Raises InvalidRequest: as :meth:`Place.of`; ImportError: there is no ``deltalake``."""
        imported("deltalake", "delta")
        return cls(Place.of(path, None, where), mode, where, str(path), str(path), options)

    def prepared(
        self, struct: StructType, folders: Sequence[str], codec: str
    ) -> tuple[DeltaFiles, FileLayout]:
        """These files with the columns and partitions of the table, and their layout. Raises InvalidRequest: the table
        has others, or asks for more than tasks do; a type that Delta does not have.
        """
        table = self._table()
        if table is not None:
            self._check(table, struct.names)
            partitions = tuple(table.metadata().partition_columns)
            if folders and tuple(folders) != partitions:
                raise InvalidRequest(
                    f"{self.where}: {self.name} is partitioned by {partitions or 'no column'}, and keeps that; leave "
                    "partitionBy out, or write another table"
                )
            folders = partitions
        layout = layout_of(struct, folders, self.where, compression=codec)
        columns = layout_of(struct, (), self.where, compression=codec).declared.schema.remove_metadata()
        columns = pa.schema([self._as_in(table, each) for each in columns])
        for name in folders:
            if pa.types.is_decimal(columns.field(name).type):
                raise InvalidRequest(
                    f"{self.where}: column {name!r} is {columns.field(name).type}, which deltalake does not always "
                    "read back from the name of a partition; cast it to string before",
                    column=name,
                )
        stored = [columns.field(name) for name in layout.declared.schema.names]
        schema = pa.schema(stored, metadata=layout.declared.schema.metadata)
        declared = replace(layout.declared, schema=schema)
        kinds = imported("deltalake", "delta").Schema.from_arrow(columns)
        prepared = replace(self, folders=tuple(folders), schema=kinds)
        required = tuple(name for name in folders if not columns.field(name).nullable)
        return prepared, replace(layout, declared=declared, ending=".parquet", required=required)

    def is_there(self) -> bool:
        return self._table() is not None

    def add(self, write: str, files: dict[str, WrittenFile]) -> None:
        delta = imported("deltalake.transaction", "delta")
        actions = [
            delta.AddAction(
                name,
                file.size_bytes,
                dict(zip(self.folders, file.texts, strict=True)),
                int(time.time() * 1000),
                True,  # noqa: FBT003 - data_change
                json.dumps({"numRecords": file.rows}),
            )
            for name, file in files.items()
        ]
        table, properties = self._table(), delta.CommitProperties(custom_metadata={WRITE_ID: write})
        if table is None:
            delta.create_table_with_add_actions(
                self.address,
                self.schema,
                actions,
                partition_by=list(self.folders),
                storage_options=self.options,
                commit_properties=properties,
            )
        elif actions or self.mode == "overwrite":
            table.create_write_transaction(
                actions,
                "overwrite" if self.mode == "overwrite" else "append",
                table.schema(),
                list(self.folders),
                commit_properties=properties,
            )

    def conflicts(self) -> tuple[type[Exception], ...]:
        return (imported("deltalake.exceptions", "delta").CommitFailedError,)

    def has_commit(self, write: str) -> bool:
        table = self._table()
        if table is None:
            return False
        if any(each.get(WRITE_ID) == write for each in table.history()):
            return True
        return any(f"/{write}/" in each for each in table.file_uris())

    def _table(self) -> Any:
        """The table as it is now; None if there is none."""
        delta = imported("deltalake", "delta").DeltaTable
        if not delta.is_deltatable(self.address, self.options):
            return None
        return delta(self.address, storage_options=self.options)

    def _check(self, table: Any, names: Sequence[str]) -> None:
        """Raise InvalidRequest: the table has a column that is not among the names, or asks for what tasks do not."""
        settings, columns = table.metadata().configuration, table.schema().fields
        features = [name for name in settings if name.startswith("delta.constraints.")]
        features += [key for each in columns for key in each.metadata if key.startswith(_OF_COLUMNS)]
        if settings.get("delta.columnMapping.mode", "none") != "none":
            features.append("delta.columnMapping.mode")
        if settings.get("delta.appendOnly") == "true" and self.mode == "overwrite":
            raise InvalidRequest(
                f"{self.where}: {self.name} has delta.appendOnly, and so no overwrite; append to it"
            )
        if features:
            raise InvalidRequest(
                f"{self.where}: {self.name} has {features[0]}, which files of tasks would not keep; write it by "
                "deltalake or Spark: .toDF().write"
            )
        missing = [each.name for each in columns if each.name not in names]
        if missing:
            raise InvalidRequest(
                f"{self.where}: {self.name} has a column {missing[0]!r}, and the pipeline has not; add it",
                column=missing[0],
            )

    def _as_in(self, table: Any, column: pa.Field) -> pa.Field:
        """The column, which may be null as the table's may. Raises InvalidRequest."""
        kinds = imported("deltalake", "delta").Schema
        try:
            (kind,) = kinds.from_arrow(pa.schema([column])).fields
        except Exception as error:
            raise InvalidRequest(
                f"{self.where}: column {column.name!r} is {column.type}, which Delta does not have; drop it, or cast "
                "it before",
                column=column.name,
            ) from error
        if table is None:
            return column
        its_own = {each.name: each for each in table.schema().fields}.get(column.name)
        if its_own is None or its_own.type != kind.type:
            what = "no such column" if its_own is None else f"{its_own.type} there"
            raise InvalidRequest(
                f"{self.where}: column {column.name!r} is {kind.type}, and {self.name} has {what}; select the table's "
                "columns, with its types",
                column=column.name,
            )
        return column.with_nullable(its_own.nullable)
