"""Tests of ``spark_client.merge``."""
