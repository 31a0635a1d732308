"""Tests of keys and matches."""
