"""Tests of ``flight_server.rules``."""
