"""Tests of ``spark_client.changelogs``."""
