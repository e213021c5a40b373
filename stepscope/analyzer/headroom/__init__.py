"""Headroom: what known changes to the same work would save, each modelled from a step's kernels and measured rates."""
