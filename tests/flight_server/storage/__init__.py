"""Tests of ``flight_server.storage``."""
