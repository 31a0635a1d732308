"""Tests of ``spark_client.scan``."""
