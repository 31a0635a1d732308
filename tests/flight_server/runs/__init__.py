"""Tests of ``flight_server.runs``."""
