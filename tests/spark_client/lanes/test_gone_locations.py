"""The locations that a process has found gone."""

from __future__ import annotations

import pytest

from spark_client.lanes import found_gone, gone_locations, is_gone


def test_a_location_is_gone_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(gone_locations, "_until", {})
    monkeypatch.setattr(gone_locations.time, "monotonic", lambda: now[0])
    found_gone("grpc://a:1")
    assert (is_gone("grpc://a:1"), is_gone("grpc://b:1")) == (True, False)
    now[0] += gone_locations.GONE_SECONDS + 1
    assert not is_gone("grpc://a:1")
    found_gone("grpc://b:1")
    assert gone_locations._until.keys() == {"grpc://b:1"}, "what is over is not kept"
