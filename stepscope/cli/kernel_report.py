"""How do the kernels read in a terminal? The few with most time, and what would make them faster."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from stepscope.core.analysis import Analysis, KernelTime
from stepscope.core.kernel_names import short_kernel_name
from stepscope.core.words import heading_phrase

MOST_KERNELS = 6
MOST_FINDINGS = 4
SHOWN_FROM = 0.01
"""Kernels under a hundredth of the windows are left to --json."""


def print_kernels(console: Console, analysis: Analysis) -> None:
    """Print the table and the findings below it; nothing where no kernel takes a hundredth of the time."""
    windows = sum(rank.window_ms for rank in analysis.ranks)
    kernels = [k for k in analysis.roofline.kernels if windows and k.ms / windows >= SHOWN_FROM][:MOST_KERNELS]
    if not kernels:
        return
    table = Table("kernel", "operator", box=box.SIMPLE_HEAD, title="Kernels with most time", title_justify="left")
    for name in ("share", "calls", "mean us", "of its roof", "occupancy"):
        table.add_column(name, justify="right")
    table.add_column("limited by")
    table.add_column("findings")
    for kernel in kernels:
        table.add_row(*_cells(kernel, windows))
    console.print(table)
    for finding in analysis.roofline.findings[:MOST_FINDINGS]:
        console.print(f"  - {finding.code.replace('_', ' ')}, {finding.fraction:.1%} of the time: {finding.message}")
        console.print(f"    > {finding.advice}")


def _cells(kernel: KernelTime, windows: float) -> tuple[str, ...]:
    occupancy = " ".join(
        part for part in (_percent(kernel.occupancy), (kernel.limiter or "").replace("_", " ")) if part
    )
    return (
        short_kernel_name(kernel.name),
        kernel.operator or "",
        f"{kernel.ms / windows:.1%}",
        f"{kernel.count:,}",
        "" if kernel.mean_us is None else f"{kernel.mean_us:,.1f}",
        _percent(kernel.roof_share),
        occupancy,
        heading_phrase(kernel.limit),
        ", ".join(code.replace("_", " ") for code in kernel.findings),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
