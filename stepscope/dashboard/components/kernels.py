"""Panel of the kernels by time: what limits them, and what would make them faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis, CopyTime, KernelFinding, KernelTime, Roofline
from stepscope.core.text.names import short_kernel_name
from stepscope.core.text.numbers import UNKNOWN, bandwidth, count, milliseconds, percent, size
from stepscope.core.text.wording import category_words
from stepscope.dashboard.components.elements import Column, panel, swatch, table

MAX_KERNELS = 20

_NUMBERS = [
    Column("Limited by", hint="below it how that was decided: model: from shapes and dtypes; by name: from its family"),
    Column("Calls", is_number=True),
    Column("Mean", is_number=True, hint="duration of one kernel"),
    Column("Time", is_number=True, hint="owned in the ledger, over all ranks and steps"),
    Column("Share", is_number=True, hint="of all ranks' windows"),
    Column("Of its roof", is_number=True, hint="least time at the GPU's peaks / duration, where a model knows it"),
    Column(
        "Occupancy",
        is_number=True,
        hint="share of a multiprocessor's warps that the launch can keep resident, and what keeps that from being more",
    ),
    Column("Findings"),
]
_COPY_COLUMNS = [
    Column("Copies"),
    Column("Calls", is_number=True),
    Column("Bytes", is_number=True),
    Column("Time", is_number=True, hint="duration, over all ranks and steps"),
    Column("Bandwidth", is_number=True),
    Column("Link", is_number=True, hint="what the host's link carries in one direction"),
]


def kernels_panel(analysis: Analysis) -> list[Component]:
    """The kernels with the most time; nothing without kernels."""
    roofline = analysis.roofline
    if not roofline.kernels:
        return []
    coverage = roofline.coverage
    note = (
        f"limits known from a model for {percent(coverage.model)} of kernel time, "
        f"by name for {percent(coverage.by_name)}, unknown for {percent(coverage.none)}"
    )
    return [
        panel(
            "Which kernels take the time, and what limits them?",
            [*_findings(roofline.findings), _groupings(roofline, sum(rank.window_ms for rank in analysis.ranks))],
            name="kernels",
            note=note,
            source=(
                "Two floors from an operator's shapes and dtypes: FLOPs / peak, fewest bytes / memory bandwidth. The "
                "larger one limits; a small kernel far above both is limited by latency. Occupancy is CUDA's own "
                "calculation from registers, shared memory, block and grid."
            ),
        )
    ]


def _findings(findings: Sequence[KernelFinding]) -> list[Component]:
    """What is wrong with them, the largest share of the time first."""
    items = [
        html.Li(
            [
                html.Span(percent(finding.fraction), className="ss-finding-share"),
                html.Span([html.B(_words(finding.code)), " · ", finding.message]),
                html.Span(finding.advice, className="ss-note"),
            ]
        )
        for finding in findings
    ]
    return [html.Ul(items, className="ss-findings")] if items else []


def _groupings(roofline: Roofline, windows: float) -> Component:
    """One tab a grouping; those that a trace does not tell are left out."""
    groupings = {
        "Name": ("Kernel", roofline.kernels),
        "Operator": ("Operator", roofline.by_operator),
        "Module": ("Module or region", roofline.by_module),
        "Call": ("Operator and shapes", roofline.by_call),
    }
    tabs: list[tuple[str, Component]] = [
        (title, _table(head, kernels, windows)) for title, (head, kernels) in groupings.items() if kernels
    ]
    if roofline.copies:
        tabs.append(("Copies", _copies(roofline.copies)))
    chosen: Component = dmc.Tabs(
        [
            dmc.TabsList([dmc.TabsTab(title, value=title) for title, _ in tabs]),
            *(dmc.TabsPanel(body, value=title, pt="md") for title, body in tabs),
        ],
        value="Name",
        variant="pills",
        id="kernels-tabs",
        className="ss-tabs",
        keepMounted=True,
    )
    return chosen


def _table(head: str, kernels: Sequence[KernelTime], windows: float) -> Component:
    shown = sorted(kernels, key=lambda kernel: -kernel.ms)[:MAX_KERNELS]
    caption = f"By {head.lower()}: the {len(shown)} with the most time"
    rows = [_row(kernel, windows) for kernel in shown]
    return table([Column(head), *_NUMBERS], rows, caption=caption, class_name="ss-kernels")


def _row(kernel: KernelTime, windows: float) -> list[Any]:
    limit = html.Span([swatch(kernel.limit), category_words(kernel.limit)], className="ss-with-swatch")
    return [
        [
            html.Code(short_kernel_name(kernel.name, most=200), title=kernel.name, className="ss-kernel-name"),
            *_origin(kernel),
        ],
        [limit, html.Div(kernel.decided_by.replace("_", " "), className="ss-note")],
        count(kernel.count),
        milliseconds(None if kernel.mean_us is None else kernel.mean_us / 1e3),
        milliseconds(kernel.ms),
        percent(kernel.ms / windows if windows else None),
        percent(kernel.roof_share, decimals=0),
        _occupancy(kernel),
        [html.Span(_words(code), className="ss-flag") for code in kernel.findings],
    ]


def _origin(kernel: KernelTime) -> list[Component]:
    """Where most of a row's time comes from, as far as its name does not say so."""
    parts = [kernel.operator, kernel.module, kernel.shapes]
    told = " · ".join(part for part in parts if part and part not in kernel.name)
    return [html.Div(told, title=told, className="ss-note ss-kernel-name")] if told else []


def _occupancy(kernel: KernelTime) -> Any:
    if kernel.occupancy is None and kernel.limiter is None:
        return UNKNOWN
    held_by = (kernel.limiter or "").replace("_", " ")
    launch = []
    if kernel.grid and kernel.block:
        launch.append(f"grid {' x '.join(map(str, kernel.grid))}, block {' x '.join(map(str, kernel.block))}")
    if kernel.registers_per_thread is not None:
        launch.append(f"{kernel.registers_per_thread} registers a thread")
    if kernel.shared_memory_bytes is not None:
        launch.append(f"{size(kernel.shared_memory_bytes)} shared memory a block")
    number = percent(kernel.occupancy, decimals=0)
    return html.Div([number, html.Div(held_by, className="ss-note")], title="; ".join(launch))


def _copies(copies: Sequence[CopyTime]) -> Component:
    rows = [
        [copy.kind, count(copy.count), size(copy.bytes), milliseconds(copy.ms), bandwidth(copy.gbs), _link(copy)]
        for copy in copies
    ]
    return table(_COPY_COLUMNS, rows, caption="Copies by kind")


def _link(copy: CopyTime) -> str:
    return UNKNOWN if copy.link_gbs is None else bandwidth(copy.link_gbs)


def _words(code: str) -> str:
    return code.replace("_", " ")
