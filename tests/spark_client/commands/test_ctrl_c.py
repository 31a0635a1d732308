"""Ctrl-C that gRPC loses."""

from __future__ import annotations

import signal

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_client.commands import application
from spark_client.commands.application import ctrl_c_remembered
from tests.support.commands import Command


class _Interrupted(flight.ClientMiddlewareFactory):
    def start_call(self, info: object) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_callback_of_grpcs_is_remembered(command: Command) -> None:
    with ctrl_c_remembered(), flight.connect(command.location, middleware=[_Interrupted()]) as client:
        assert not application._interrupted.is_set()
        with pytest.raises(pa.ArrowKeyError):  # and no KeyboardInterrupt
            client.get_flight_info(flight.FlightDescriptor.for_path("none"))
        assert application._interrupted.is_set()


def test_an_error_after_it_is_ctrl_c(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application._interrupted, "is_set", lambda: True)
    said = command("stat", "none")
    assert (said.code, said.err) == (130, "")
