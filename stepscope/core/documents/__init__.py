"""Typed documents: what commands print with `--json`, what agents serve, and what a run directory holds."""
