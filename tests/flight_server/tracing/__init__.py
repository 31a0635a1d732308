"""Tests of ``flight_server.tracing``."""
