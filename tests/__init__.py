"""Tests, benchmarks and the demo; each test file mirrors the module that it tests."""
