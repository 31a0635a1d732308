"""Tests of what PySpark does not document."""
