"""Hang detection: which ranks hold up a job and why, from the flight recorders of its ranks."""

from stepscope.analyzer.hang.verdict import explain_hang

__all__ = ["explain_hang"]
