"""Clients are shared by equal arguments, and forgotten when they are closed."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from spark_client.settings import open_client

SPARK: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "application of this test"))


class Client:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_closed_client_is_kept_by_no_later_call_with_whatever_arguments() -> None:
    first = open_client(SPARK, {"token": "1"}, Client)
    assert open_client(SPARK, {"token": "1"}, Client) is first
    first.close()
    gone = weakref.ref(first)
    del first
    other = open_client(SPARK, {"token": "2"}, Client)
    gc.collect()
    assert gone() is None
    other.close()
