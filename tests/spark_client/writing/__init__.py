"""Tests of ``spark_client.writing``."""
