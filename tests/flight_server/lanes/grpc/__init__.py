"""Tests of ``flight_server.lanes.grpc``."""
