"""Penelope against stock SGLang, both real engines on the CPU, on a scaled-down trace."""
