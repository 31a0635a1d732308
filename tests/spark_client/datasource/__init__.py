"""Tests of ``spark_client.datasource``."""
