"""Tests of ``spark_client.lookup``."""
