"""Tests of what tasks do with rows."""
