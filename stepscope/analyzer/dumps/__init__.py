"""Dumps of a run joined with its analysis: flight recorders, memory snapshots, NCCL logs."""
