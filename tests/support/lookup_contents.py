"""Contents of lookups over a ``VersionedTable``, for keys and values given by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from spark_client.arrow import Declared
from spark_client.hosts import Copies
from spark_client.joining import KeyForm
from spark_client.lookup.lookup_content import LookupContent
from tests.support.versioned_table import VersionedTable


def content(
    source: VersionedTable,
    schema: pa.Schema,
    keys: Sequence[str],
    base: Path,
    *,
    left: Sequence[pa.DataType] | None = None,
    limit_bytes: int | None = None,
) -> LookupContent:
    """The content whose files are in ``base``."""
    kinds = left or [schema.field(key).type for key in keys]
    forms = tuple(
        KeyForm.of(kind, schema.field(key).type, key) for kind, key in zip(kinds, keys, strict=True)
    )
    others = [name for name in schema.names if name not in keys]
    declared = Declared("changelog", pa.schema([schema.field(name) for name in [*keys, *others]]))
    copies = Copies((str(base),), limit_bytes=limit_bytes)
    return LookupContent(cast("Any", source), tuple(keys), forms, declared, "app", copies)
