"""Tests of ``spark_client.lanes``."""
