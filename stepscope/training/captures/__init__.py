"""Captures: which steps torch's profiler records, who may request that, and how traces are written."""
