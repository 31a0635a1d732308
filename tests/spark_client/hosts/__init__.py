"""Tests of ``spark_client.hosts``."""
