"""Tests of ``flight_server.kinds.changelog.rules``."""
