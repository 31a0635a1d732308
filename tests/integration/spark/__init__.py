"""Spark with real servers."""
