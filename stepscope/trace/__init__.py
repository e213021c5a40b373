"""Readers of profiler traces: any format in, one rank's events as columns out."""
