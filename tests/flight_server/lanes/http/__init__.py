"""Tests of ``flight_server.lanes.http``."""
