"""Tests of ``flight_server.datasets``."""
