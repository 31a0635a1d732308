"""Tests of what tasks gather."""
