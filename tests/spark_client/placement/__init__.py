"""Tests of ``spark_client.placement``."""
