"""Measured times of kernels on one NVIDIA H200, microseconds; see `benchmarks.kernel_rates.table`."""

GPU = "NVIDIA H200"
"""The device's name by its driver."""

ROWS = ""
"""One line a case: kind, what it is of, its sizes, and time by pass or inner size."""
