"""Measurements beside other ways to do the same, as ratios from one run: `python -m benchmarks`."""
