"""Tests of ``flight_server.sources``."""
