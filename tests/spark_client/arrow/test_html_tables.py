"""What a notebook shows of names and values, of a list of datasets, and of a client."""

from __future__ import annotations

import pyarrow as pa

from spark_client import ShuffleClient
from spark_client.arrow import html_table
from spark_client.dataset_calls import DatasetInfo, Listed


def test_values_are_shown_as_text() -> None:
    assert html_table(["a<"], [["<b>"], [None]]) == (
        "<table><thead><tr><th>a&lt;</th></tr></thead>"
        "<tbody><tr><td>&lt;b&gt;</td></tr><tr><td>None</td></tr></tbody></table>"
    )


def test_a_list_is_a_table_and_says_what_is_missing() -> None:
    info = DatasetInfo("d", 2, 7, 512, pa.schema([("n", pa.int64())]))
    shown = Listed([info], [{"location": "grpc://a:1", "gone": "refused"}])._repr_html_()
    assert "<th>name</th><th>partitions</th><th>rows</th><th>size_bytes</th><th>schema</th>" in shown
    assert "<tr><td>d</td><td>2</td><td>7</td><td>512</td><td>n: int64</td></tr>" in shown
    assert "without what is on grpc://a:1: refused" in shown
    waits = Listed([{"reason": "producer"}, {"peer": "x"}], [])._repr_html_()
    assert "<tr><td>producer</td><td></td></tr><tr><td></td><td>x</td></tr>" in waits


def test_a_client_is_shown_without_a_call() -> None:
    with ShuffleClient("grpc://127.0.0.1:1,grpc://127.0.0.1:2") as client:
        shown = client._repr_html_()
    assert "<td>grpc://127.0.0.1:1</td></tr><tr><td>grpc://127.0.0.1:2</td>" in shown
    assert "(closed)" in client._repr_html_()
