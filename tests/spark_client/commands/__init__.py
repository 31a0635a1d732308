"""Tests of the command ``flight-shuffle``."""
