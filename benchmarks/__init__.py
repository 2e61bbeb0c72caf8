"""Measurements, not tests: `python -m benchmarks`, or one module at a time."""
