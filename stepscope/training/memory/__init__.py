"""CUDA memory snapshots, at an interval and when the GPU runs out of memory."""
