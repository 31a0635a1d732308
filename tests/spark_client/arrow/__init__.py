"""Tests of ``spark_client.arrow``."""
