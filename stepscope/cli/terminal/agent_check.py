"""Report of `stepscope agent check`: sources, and the metrics collected or missing of each GPU, as lines."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from stepscope.core.metrics.readings import MissingReason
from stepscope.core.text.numbers import counted

if TYPE_CHECKING:
    from stepscope.agent.sources import AgentCheck, GpuCapabilities, MetricGap


_WIDTHS = 60, 120
"""Least and most columns; between them the terminal's width is used."""
_WHY = {
    MissingReason.NOT_SUPPORTED: "this GPU, driver or machine has no such thing",
    MissingReason.NO_PERMISSION: "this user may not read it",
    MissingReason.NOT_INSTALLED: "its source is not installed",
    MissingReason.VERSION_MISMATCH: "library and driver do not fit: reboot, or reload the module",
    MissingReason.GONE: "it has disappeared",
    MissingReason.NOT_ON_PAGE: "dcgm-exporter's page has it no more",
    MissingReason.TIMED_OUT: "no answer in time",
    MissingReason.UNREACHABLE: "its source cannot be reached",
    MissingReason.UNREADABLE: "its value makes no sense",
    MissingReason.TAKEN: "another program uses it",
    MissingReason.NOT_YET: "it has no value yet",
    MissingReason.FAILED: "it failed for an unknown reason",
}
"""For gaps without a detail of their source."""


def agent_check_lines(found: AgentCheck) -> list[str]:
    """Terminal lines of `stepscope agent check`, none wider than the terminal or 120 columns."""
    import shutil

    narrow, wide = _WIDTHS
    width = max(narrow, min(wide, shutil.get_terminal_size((wide, 0)).columns))
    lines = _sources(found, width)
    for one in found.capabilities:
        lines += ["", *_of_one(one, width)]
    return lines


def _sources(found: AgentCheck, width: int) -> list[str]:
    rows = [("source", "state", "values", "")]
    rows += [(one.name, one.reason or "up", str(one.num_readings), one.detail) for one in found.sources]
    columns = [max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]]
    lines: list[str] = []
    for *cells, detail in rows:
        head = "".join(cell.ljust(column) for cell, column in zip(cells, columns, strict=True))
        lines += _wrapped(head + detail, width, indent=sum(columns))
    for source in found.sources:
        for finding in source.findings:
            lines += _wrapped(f"finding: {finding}", width, indent=len("finding: "))
    return lines


def _of_one(one: GpuCapabilities, width: int) -> list[str]:
    labels = dict(one.labels)
    names = (labels.get(name, "") for name in ("gpu", "uuid", "mig_profile"))
    name = f"GPU {' '.join(names)}" if labels else "this machine"
    lines = [f"{' '.join(name.split())}: {counted(len(one.collected), 'metric')}"]
    for gap in one.gaps:
        lines += _wrapped(f"  {gap.reason}: {gap.detail or _WHY[gap.reason]}", width, indent=4)
        lines += _wrapped(f"    {_names(gap)}", width, indent=4)
    return lines


def _names(gap: MetricGap) -> str:
    return ", ".join(metric.removeprefix("stepscope_") for metric in gap.metrics) or "all of its metrics"


def _wrapped(line: str, width: int, *, indent: int) -> list[str]:
    later = " " * indent
    return textwrap.wrap(line, width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
