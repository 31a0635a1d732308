"""Tests of ``flight_server.protocol``."""
