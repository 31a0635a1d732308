"""Tests of ``flight_server.memory``."""
