"""Hangs: which ranks hold the job up and why, from the flight recorders of its ranks."""

from stepscope.analyzer.hang.verdict import explain_hang

__all__ = ["explain_hang"]
