"""Estimate of a workload before it runs: memory, FLOPs, communication, bubble, time and cost. Needs no torch."""
