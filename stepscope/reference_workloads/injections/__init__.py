"""Faults that can be injected into a workload: one class a fault, one module a family, by name in `catalogue`.

Their base class `Injection` is in `reference_workloads.job`.
"""
