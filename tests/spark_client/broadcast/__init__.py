"""Tests of ``spark_client.broadcast``."""
