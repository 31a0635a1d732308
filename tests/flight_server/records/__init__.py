"""Tests of ``flight_server.records``."""
