"""Hang detection: steps that do not end, the reports written about them, and the live check across ranks."""
