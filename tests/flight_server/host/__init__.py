"""Tests of ``flight_server.host``."""
