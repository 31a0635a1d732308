"""Tests of ``flight_server.concurrency``."""
