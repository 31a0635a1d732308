"""``pipeline.write``: the rows as files that the plan's last tasks write, without the JVM (``spark_client.writing``).

Its methods have the names and arguments of PySpark's ``DataFrameWriter`` where they do the same. Each returns when what
it wrote can be read, or raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from flight_server.protocol import InvalidRequest
from spark_client.connection import short_traces
from spark_client.jobs import settings_once, spark_setting
from spark_client.steps import SPARK_REPORTS, reports_of
from spark_client.writing import (
    MODES,
    DeltaFiles,
    FileLayout,
    FileStage,
    IcebergFiles,
    ParquetFolder,
    Place,
    Publication,
    WrittenFile,
    layout_of,
)

from .base import Steps, find_keys
from .exchanging import sort_within_partitions
from .finishing import last_rows
from .mapping import names_of
from .spark_names import no_writer_attribute, public_names

Mode = Literal["append", "overwrite", "error", "errorifexists", "ignore"]


@short_traces
@dataclass(frozen=True)
class PipelineWriter:
    """How a pipeline's rows are written; each method that does not write returns a new one."""

    _steps: Steps
    _mode: str = "error"
    _folders: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<PipelineWriter of {self._steps!r}>"

    if not TYPE_CHECKING:  # which would take any name for a method

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(no_writer_attribute(name, public_names(type(self))), name=name)

    def __dir__(self) -> list[str]:
        return public_names(type(self))

    def mode(self, saveMode: Mode | None) -> PipelineWriter:
        """What happens where files are already: ``error``, ``append``, ``overwrite`` or ``ignore``. Raises
        InvalidRequest: another word.
        """
        if saveMode is None:
            return self
        if str(saveMode).lower() not in MODES:
            raise InvalidRequest(f"write: mode is one of {', '.join(MODES)}, not {saveMode!r}")
        return replace(self, _mode=str(saveMode).lower())

    def partitionBy(self, *cols: str | Sequence[str]) -> PipelineWriter:
        """Put rows in a folder ``name=value`` for each value of these columns, which the files then do not have.
        Raises InvalidRequest: no such column.
        """
        folders = find_keys(self._steps, names_of(cols), "partitionBy")
        twice = [name for name in folders if folders.count(name) > 1]
        if twice:
            raise InvalidRequest(
                f"partitionBy: {twice[0]!r} is there twice; name each column once", column=twice[0]
            )
        return replace(self, _folders=folders)

    def parquet(
        self,
        path: str | Path,
        mode: Mode | None = None,
        partitionBy: str | Sequence[str] | None = None,
        compression: str | None = None,
        *,
        filesystem: Any = None,
    ) -> None:
        """Write Parquet files below a path, one for each partition, in which the rows keep their order.

        Nothing of it is visible until all tasks have ended well. Then all files get their names, by renames, or in a
        store by copies within it, and an ``overwrite`` deletes the old ones. A reader that lists the folder meanwhile
        may see some of the new files, beside all old ones; ``_SUCCESS`` is there only while no write is on its way. A
        driver that dies leaves hidden files, and before its last file had its name, as many of the visible ones; the
        next write below the path, also one with ``mode="ignore"``, removes both.

        Two writes at once are one after the other: rows of two ``append`` are both there, of two ``overwrite`` those of
        the later one. Writers of other programs do not wait for a turn.

        Args:
            path: a local path, or an address such as ``s3://lake/scores``, as ``scan`` takes them.
            mode: what happens where files are already: ``error`` (as without one), ``append``, ``overwrite``, which
                replaces all visible files, and ``ignore``.
            partitionBy: columns, in a folder for each value of which the rows go. Each task sorts its rows by them, and
                so has one file open.
            compression: ``snappy``, ``zstd``, ``gzip``, ``brotli``, ``lz4`` or ``none``; without it that of
                ``spark.sql.parquet.compression.codec``.
            filesystem: of pyarrow or fsspec, in which ``path`` is a path; tasks get a copy.

        Raises:
            AlreadyExists: there are files, and the mode is ``error``.
            InvalidRequest: a path, mode, column or compression that cannot be; a type that Parquet does not hold.
            NotFound: the driver does not see files of tasks, because the path is on disks of executors.
            pyspark.errors.PySparkException: a job failed.
        """
        where = "write.parquet"
        writer, spark = self._with(mode, partitionBy), self._steps.spark
        with settings_once(spark):
            layout = layout_of(
                writer._steps.leg.struct,
                writer._folders,
                where,
                compression=writer._codec(compression),
                zone=spark_setting(spark, "spark.sql.session.timeZone"),
            )
            place = Place.of(path, filesystem, where)
            writer._publish(ParquetFolder(place, MODES[writer._mode], where, str(path)), layout)

    def delta(
        self,
        path: str | Path,
        mode: Mode | None = None,
        partitionBy: str | Sequence[str] | None = None,
        compression: str | None = None,
        *,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        """Write to the Delta table at a path, or make it: the files of the tasks are committed in one transaction of
        the package ``deltalake`` (the extra ``delta``). Readers of the table see all of them from then on, or nothing.

        The files lie in a folder of the table with the write's id. Of a write that did not commit, the next one
        removes them. A table that has other writers' commits at once is written again on top of those, some times.

        Args:
            path: as for :meth:`parquet`.
            mode: as for :meth:`parquet`, where a table is instead of files. Columns and partitions stay: an
                ``overwrite`` replaces the rows.
            partitionBy: of a table that is made; one that is there says it itself.
            compression: as for :meth:`parquet`.
            storage_options: for ``deltalake``. Tasks find credentials in the address or in their environment.

        Raises:
            AlreadyExists: there is a table, and the mode is ``error``.
            Conflict: other writers have committed first, each time.
            InvalidRequest: as :meth:`parquet`; other columns, types or partitions than the table's; a table with
                constraints, generated columns or a mapping of columns, which files of tasks would not keep.
            ImportError: there is no ``deltalake``.
        """
        where = "write.delta"
        writer = self._with(mode, partitionBy)
        with settings_once(self._steps.spark):
            table = DeltaFiles.of(path, MODES[writer._mode], where, storage_options)
            codec = writer._codec(compression)
            writer._publish(*table.prepared(writer._steps.leg.struct, writer._folders, codec))

    def iceberg(self, table: Any, mode: Mode | None = None, compression: str | None = None) -> None:
        """Write to a table of ``pyiceberg`` (the extra ``iceberg``), which commits the files of the tasks in one
        transaction, by its ``add_files``. Readers of the table see all of them from then on, or nothing.

        As :meth:`delta` otherwise. ``table`` is one that a catalog has made or loaded; afterwards it has the new
        snapshot. Rows go to its partitions, which are by values of columns (identity).

        Raises:
            AlreadyExists: the table has rows, and the mode is ``error``.
            Conflict, InvalidRequest: as :meth:`delta`; a table with partitions of another kind.
            ImportError: there is no ``pyiceberg``.
        """
        where = "write.iceberg"
        writer = self.mode(mode)
        if writer._folders:
            raise InvalidRequest(f"{where}: the table says its partitions itself; leave partitionBy out")
        with settings_once(self._steps.spark):
            files = IcebergFiles.of(table, MODES[writer._mode], where)
            writer._publish(files, files.layout(writer._steps.leg.struct, writer._codec(compression)))

    def _codec(self, compression: str | None) -> str:
        return compression or spark_setting(self._steps.spark, "spark.sql.parquet.compression.codec")

    def _with(self, mode: Mode | None, folders: str | Sequence[str] | None) -> PipelineWriter:
        writer = self.mode(mode)
        return writer if folders is None else writer.partitionBy(*names_of((folders,)))

    def _publish(self, publication: Publication, layout: FileLayout) -> None:
        steps = self._steps
        if layout.folders:
            steps = sort_within_partitions(steps, list(layout.folders))
        with ExitStack() as ending:
            try:
                write = ending.enter_context(publication.staged())
            except PermissionError:
                # Where nothing may be written, what is there can still be left, or refused.
                if publication.is_wanted():
                    raise
                return
            if publication.is_wanted():
                stage = FileStage(publication.place, publication.folder(write), layout)
                texts = (text for (text,) in last_rows(steps, stage, SPARK_REPORTS))
                files = [*map(WrittenFile.of, reports_of(texts))]
                publication.commit(write, stage, files)
