"""The errors of the client: spark_client exports each, and each is what Python itself calls such an error."""

from __future__ import annotations

import importlib
import pickle

import pytest

import spark_client
from flight_server.protocol import FlightShuffleError, error_classes
from spark_client import InvalidRequest, NotFound, StaleTicket, TimedOut, Unreachable
from tests.support.python_program import output_of
from tests.support.rooms import MODULES

INSIDE = {"CutRead", "PassedOver"}
"""Which the client's own loops handle."""


def test_each_error_is_exported() -> None:
    for name in MODULES:
        if name.startswith("spark_client.") and "error" not in name and not name.endswith("__main__"):
            importlib.import_module(name)
    kinds = [each for each in error_classes().values() if each.__module__.startswith(("flight_", "spark_"))]
    assert {each.__name__ for each in kinds} > INSIDE
    missing = {each.__name__ for each in kinds if getattr(spark_client, each.__name__, None) is not each}
    assert missing == INSIDE
    assert {each.__name__ for each in kinds} - INSIDE < {*spark_client.__all__}


@pytest.mark.parametrize(
    ("kind", "python"),
    [
        (InvalidRequest, ValueError),
        (NotFound, LookupError),
        (StaleTicket, LookupError),
        (TimedOut, TimeoutError),
        (Unreachable, ConnectionError),
    ],
)
def test_an_error_is_of_pythons_class_too(kind: type[FlightShuffleError], python: type[Exception]) -> None:
    error = kind("what was wrong; what to do", dataset="d")
    for each in (error, error.fresh(), pickle.loads(pickle.dumps(error))):
        assert isinstance(each, python)
        assert isinstance(each, FlightShuffleError)
        assert (str(each), each.message, each.detail) == (error.message, error.message, {"dataset": "d"})


def test_an_error_is_imported_without_the_libraries_that_it_does_not_need() -> None:
    program = "import sys; from spark_client import NotFound, InvalidRequest; print(*sys.modules)"
    assert {"pyarrow", "grpc", "pyspark"}.isdisjoint(output_of(program).split())
