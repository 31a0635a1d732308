"""The table of options of a session's ``spark.flight.shuffle.*`` and of the format ``flight``.

An option that is a field of :class:`Reading`, :class:`Writing` or :class:`Timeouts` has its default and its meaning
there, and so has one of ``Copies`` after ``copies.``. Each use finds its own by :func:`options_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from flight_server.protocol import check_attempt, check_dataset_name
from spark_client.connection import Timeouts, check_locations

from . import texts
from .texts import flag, integer, one_of, seconds, size_bytes, some_text

SESSION = "spark.flight.shuffle"
BATCH_READ, BATCH_WRITE = "spark.read", "df.write"
STREAM_READ, STREAM_WRITE = "spark.readStream", "df.writeStream"
ANY_READ = "spark.read or spark.readStream"
"""Spark does not say which of the two it asks the schema for."""

_READS = frozenset({BATCH_READ, STREAM_READ})
_WRITES = frozenset({BATCH_WRITE, STREAM_WRITE})
_SOURCE = _READS | _WRITES
_READ, _WRITE, _STREAM_READ, _STREAM_WRITE, _SESSION = (
    frozenset({use}) for use in (BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE, SESSION)
)
_ALL = _SESSION | _SOURCE


@dataclass(frozen=True)
class Option:
    """One option of the ``uses`` that are named; two of one name have different uses.

    Args:
        name: as Python spells it. A session has ``lease_seconds`` as ``leaseSeconds``, the format ``flight`` also so.
        parse: the value of a text; raises as ``texts`` says.
        default: of one that is not given.
    """

    name: str
    parse: Callable[[str], Any]
    uses: frozenset[str]
    default: Any = None


LIMITS = ("max_rows_per_trigger", "max_bytes_per_trigger", "max_partitions_per_trigger")
OF_PARTITIONS = (
    Option("starting", one_of("earliest", "latest"), _STREAM_READ, "earliest"),
    *(Option(name, size_bytes(1) if "bytes" in name else integer(1), _STREAM_READ) for name in LIMITS),
)
"""A read of a changelog has none of these."""
OF_CHANGELOGS = (
    Option("as_of", integer(0), _READ),
    Option("after", integer(0), _READ),
    Option("starting_version", texts.start, _STREAM_READ, "earliest"),
    Option("max_versions_per_trigger", integer(1), _STREAM_READ),
    Option("hold_lease_seconds", seconds(0.1), _READS),
    Option("fail_on_data_loss", flag, _STREAM_READ | _STREAM_WRITE, default=True),
)
"""A read of another dataset has none of these."""
OF_SPARK = (
    Option("path", check_dataset_name, _SOURCE),
    Option("checkpoint_location", str, _STREAM_WRITE),
    Option("query_name", str, _STREAM_WRITE),
)
"""Those that Spark sets."""
OPTIONS = (
    Option("location", texts.location, _SESSION),
    Option("location", lambda text: ",".join(check_locations(text)), _SOURCE),
    Option("token", texts.token, _ALL),
    Option("token_file", texts.file, _ALL),
    Option("tls_root_certs", texts.certificates, _ALL),
    *(Option(name, texts.file, _ALL) for name in ("tls_client_cert", "tls_client_key")),
    Option("lane", one_of("auto", "grpc", "bulk"), _ALL),
    Option("compression", texts.compression, _SESSION),
    Option("budget_bytes", size_bytes(1), _SESSION | _READS),
    Option("gathered_bytes", size_bytes(1 << 20), _SESSION),
    Option("driver_bytes", size_bytes(0), _SESSION),
    Option("scratch_dir", some_text("a directory"), _SESSION | _READS),
    *(
        Option(each.name, integer(0) if each.name == "tries" else seconds(0.001), _ALL)
        for each in fields(Timeouts)
    ),
    Option("copies.dirs", texts.directories, _SESSION),
    Option("copies.limit_bytes", size_bytes(1), _SESSION),
    Option("lease_seconds", seconds(1), _SESSION),
    Option("offload_to", texts.prefixes, _SESSION),
    Option("workers", integer(1), _SESSION),
    *OF_SPARK,
    Option("columns", texts.names, _READS),
    *OF_PARTITIONS,
    *OF_CHANGELOGS,
    Option("exists", one_of("append", "error", "ignore"), _WRITE),
    Option("lease_seconds", seconds(0.1), _WRITES),
    Option("durable", flag, _WRITES, default=False),
    Option("changelog", texts.keep_rule, _WRITES),
    Option("delay_seconds", seconds(0.0), _WRITES),
    Option("delete", flag, _WRITES, default=False),
    Option("transaction_app", lambda text: check_attempt(text, "option 'transaction_app'"), _WRITE),
    Option("transaction_version", integer(0), _WRITE),
)


def options_of(*uses: str) -> dict[str, Option]:
    """The options that one of these uses has, by their names."""
    return {option.name: option for option in OPTIONS if option.uses.intersection(uses)}
