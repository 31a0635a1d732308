"""The columns of an expression are found by leaving columns out."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_client.arrow.expression_columns import needed


def test_the_columns_of_an_expression_are_found_among_many() -> None:
    wide = pa.schema([(f"c{number}", pa.int64()) for number in range(300)])
    assert needed((pc.field("c7") > 1) & (pc.field("c250") < pc.field("c3")), wide) == ["c3", "c7", "c250"]
    assert needed(pc.scalar(True), wide) == []
