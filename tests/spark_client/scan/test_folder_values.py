"""Values of folders of a given type; ``tests/integration/spark/test_scan_folders.py`` has those that are inferred."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.scan.folder_values import FolderRules

TEXT, INSTANTS = pa.string(), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(TEXT, "01", "01"), (pa.int64(), "01", 1), (pa.float64(), "5", 5.0), (pa.bool_(), "true", True)],
)
def test_a_type_that_is_given_counts(kind: pa.DataType, text: str, value: object) -> None:
    assert FolderRules().values("k", [text], kind)[text].as_py() == value
    if kind != TEXT:
        with pytest.raises(
            InvalidRequest, match=r"folder of column 'k' has a value that is no .*; give schema="
        ):
            FolderRules().values("k", [text, "x'"], kind)
    with pytest.raises(InvalidRequest, match="no timestamp"):
        FolderRules(instants=lambda _: [1]).values("k", [text], INSTANTS)
