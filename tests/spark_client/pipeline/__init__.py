"""Tests of ``spark_client.pipeline``."""
