"""Tests of ``spark_client.executors``."""
