"""Faults that reference workloads can inject, with the verdict that each must get."""

from __future__ import annotations

from stepscope.reference_workloads.injections.catalogue import list_faults
from stepscope_reference.markdown import code, table, text


def faults() -> str:
    """One row a fault."""
    rows = [
        (
            code(fault["name"]),
            text(fault["what"]),
            ", ".join(f"{name} {value}" for name, value in fault["severity"].items()),
            _verdict(fault["cause"], fault["reasons"]),
            text(fault["shows"]),
            text("; ".join(fault["needs"])),
        )
        for fault in list_faults()
    ]
    return table(("fault", "what", "severity (default)", "verdict expected", "the trace must show", "needs"), rows)


def _verdict(cause: str, reasons: list[str]) -> str:
    return f"{code(cause)} ({', '.join(reasons)})" if reasons else code(cause)
