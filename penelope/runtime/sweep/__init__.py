"""Many settings over one workload: which there are, running them, and what they come to."""
