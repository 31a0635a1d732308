"""Tests of groups' states and of how they are merged."""
