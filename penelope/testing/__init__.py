"""Checks of what is not ours: run them against your own store or cache."""
