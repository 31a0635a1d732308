"""Tests of ``spark_client.connection``."""
