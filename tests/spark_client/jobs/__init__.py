"""Tests of ``spark_client.jobs``."""
