"""Roofline: what limits each kernel: arithmetic, memory bandwidth, or its own latency."""
