"""Tests of ``flight_server.reporting``."""
