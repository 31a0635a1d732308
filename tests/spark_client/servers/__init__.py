"""Tests of ``spark_client.servers``."""
