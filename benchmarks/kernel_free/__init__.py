"""A prefill of our own in plain PyTorch: one GPU and no serving engine."""
