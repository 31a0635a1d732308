"""Tests of ``flight_server.access``."""
