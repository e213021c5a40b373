"""Comparison of two runs, or sets of runs: what changed, and whether it is more than noise."""
