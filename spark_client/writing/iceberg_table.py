"""Files of an Iceberg table, committed by ``pyiceberg``: ``add_files`` in a transaction, after a delete of all rows
where the mode is ``overwrite``. It reads the footer of each file, in the driver.

Rows of one file have the same values of the columns by which the table is partitioned, and the file has these columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest

from .file_stage import FileLayout, WrittenFile
from .storage_place import Place
from .stored_types import layout_of
from .table_files import WRITE_ID, TableFiles, imported


@dataclass(frozen=True)
class IcebergFiles(TableFiles):
    """``table`` is one of ``pyiceberg``."""

    table: Any = field(repr=False)

    kind = "iceberg"
    data = "data/"

    @classmethod
    def of(cls, table: Any, mode: str, where: str) -> IcebergFiles:
        """Raises InvalidRequest: it is no table; ImportError: there is no ``pyiceberg``."""
        if not isinstance(table, imported("pyiceberg.table", "iceberg").Table):
            raise InvalidRequest(
                f"{where} takes a table of pyiceberg, as catalog.load_table('lake.scores') gives it, not {table!r}"
            )
        table.refresh()
        files, location = table.io, table.location()
        if isinstance(files, imported("pyiceberg.io.pyarrow", "iceberg").PyArrowFileIO):
            scheme, bucket, path = files.parse_location(location, files.properties)
            place = Place(files.fs_by_scheme(scheme, bucket), path.rstrip("/"))
        else:
            place = Place.of(location, None, where)
        return cls(place, mode, where, ".".join(table.name()), table)

    def layout(self, struct: StructType, codec: str) -> FileLayout:
        """Of files with the table's columns and partitions. Raises InvalidRequest: the pipeline has others."""
        iceberg, own = imported("pyiceberg.io.pyarrow", "iceberg"), self.table.schema()
        spec = self.table.spec()
        for each in spec.fields:
            if str(each.transform) != "identity":
                raise InvalidRequest(
                    f"{self.where}: {self.name} is partitioned by {each.name}, a {each.transform} of a column; tasks "
                    "write partitions by values of columns only"
                )
        folders = [own.find_column_name(each.source_id) for each in spec.fields]
        odd = sorted({*struct.names} ^ {each.name for each in own.fields})
        if odd:
            who = "the pipeline" if odd[0] in struct.names else self.name
            raise InvalidRequest(
                f"{self.where}: only {who} has a column {odd[0]!r}; select the table's columns", column=odd[0]
            )
        layout = layout_of(struct, folders, self.where, compression=codec, keeps_folders=True)
        schema = layout.declared.schema
        for name in struct.names:
            try:
                (kind,) = iceberg.pyarrow_to_schema(pa.schema([schema.field(name)]), own.name_mapping).fields
            except (TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"{self.where}: {error}; drop it, or cast it before", column=name
                ) from error
            its_own = own.find_field(name)
            if kind.field_type != its_own.field_type:
                raise InvalidRequest(
                    f"{self.where}: column {name!r} is {kind.field_type}, and {self.name} has {its_own.field_type} "
                    "there; cast it before",
                    column=name,
                )
            number = schema.get_field_index(name)
            schema = schema.set(number, schema.field(number).with_nullable(not its_own.required))
        return replace(layout, declared=replace(layout.declared, schema=schema), ending=".parquet")

    def is_there(self) -> bool:
        return next(iter(self.table.scan().plan_files()), None) is not None

    def add(self, write: str, files: dict[str, WrittenFile]) -> None:
        self.table.refresh()
        location, properties = self.table.location().rstrip("/"), {WRITE_ID: write}
        with self.table.transaction() as transaction:
            if self.mode == "overwrite":
                every = imported("pyiceberg.table", "iceberg").ALWAYS_TRUE
                transaction.delete(every, snapshot_properties=properties)
            if files:
                paths = [f"{location}/{name}" for name in files]
                transaction.add_files(paths, snapshot_properties=properties, check_duplicate_files=False)

    def conflicts(self) -> tuple[type[Exception], ...]:
        errors = imported("pyiceberg.exceptions", "iceberg")
        return errors.CommitFailedException, errors.ValidationException

    def has_commit(self, write: str) -> bool:
        table = self.table.refresh()
        summaries = [each.summary for each in table.snapshots() if each.summary is not None]
        if any(each.additional_properties.get(WRITE_ID) == write for each in summaries):
            return True
        return any(f"/{write}/" in each.file.file_path for each in table.scan().plan_files())
