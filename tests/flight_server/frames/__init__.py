"""Tests of ``flight_server.frames``."""
