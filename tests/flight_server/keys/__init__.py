"""Tests of ``flight_server.keys``."""
