"""Tests of ``flight_server.tiering``."""
