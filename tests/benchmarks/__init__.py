"""Benchmarks: ratios within one run, medians of several rounds, printed with their conditions."""
