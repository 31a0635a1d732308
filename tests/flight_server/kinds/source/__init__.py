"""Tests of ``flight_server.kinds.source``."""
