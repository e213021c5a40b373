"""Which kernels take the time, and what limits them?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, KernelTime
from stepscope.dashboard.components.bars import swatch
from stepscope.dashboard.components.panel import panel
from stepscope.dashboard.components.table import Column, table
from stepscope.dashboard.words import count, heading_words, milliseconds, percent

MAX_KERNELS = 20

_COLUMNS = [
    Column("Kernel"),
    Column("Limited by"),
    Column("Decided by", hint="model: from shapes and dtypes; by name: from the kernel's family"),
    Column("Calls", is_number=True),
    Column("Time", is_number=True, hint="owned in the ledger, over all ranks and steps"),
    Column("Share", is_number=True, hint="of all ranks' windows"),
]


def kernels_panel(analysis: Analysis) -> list[Component]:
    """The kernels with the most time; nothing without kernels."""
    kernels = sorted(analysis.roofline.kernels, key=lambda kernel: -kernel.ms)[:MAX_KERNELS]
    if not kernels:
        return []
    windows = sum(rank.window_ms for rank in analysis.ranks)
    coverage = analysis.roofline.coverage
    note = (
        f"limits known from a model for {percent(coverage.costed)} of kernel time, "
        f"by name for {percent(coverage.by_name)}, unknown for {percent(coverage.none)}"
    )
    rows = [_row(kernel, windows) for kernel in kernels]
    return [
        panel(
            "Which kernels take the time, and what limits them?",
            [table(_COLUMNS, rows, caption=f"The {len(kernels)} kernels with the most time", class_name="ss-kernels")],
            name="kernels",
            note=note,
            source=(
                "Two floors from an operator's shapes and dtypes: FLOPs / peak, fewest bytes / memory bandwidth. The "
                "larger one limits; a small kernel far above both is limited by latency."
            ),
        )
    ]


def _row(kernel: KernelTime, windows: float) -> list[object]:
    limit = html.Span([swatch(kernel.limit), heading_words(kernel.limit)], className="ss-with-swatch")
    return [
        html.Code(kernel.name, title=kernel.name, className="ss-kernel-name"),
        limit,
        kernel.decided_by.replace("_", " "),
        count(kernel.count),
        milliseconds(kernel.ms),
        percent(kernel.ms / windows if windows else None),
    ]
