"""Tests of ``spark_client.settings``."""
