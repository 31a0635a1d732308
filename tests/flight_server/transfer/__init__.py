"""Tests of ``flight_server.transfer``."""
