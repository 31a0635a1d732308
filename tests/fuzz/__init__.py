"""A fuzzer that runs random programs as pipelines and as DataFrames, and compares rows, types and order."""
