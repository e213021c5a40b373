"""Benchmark of a workload: its throughput on this machine without profiling, and how that scales.

MLPerf's logs and torchtitan's metrics tell one run's tokens a second; HPL-style sheets tell scaling without its noise.
Here a bench keeps every step of every repeated run beside what decided them (GPUs, clocks, versions, commit), so that a
later bench is held against it by the same statistics as `stepscope compare`, and a fit carries its interval.
"""
