"""The main job on real data: `python -m tests.demo`, or `make demo`."""
