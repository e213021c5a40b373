"""Panels of communication, pipeline, kernels and warnings."""

from __future__ import annotations

from stepscope.core.documents.analysis import Analysis, Collective, KernelTime
from stepscope.core.text.names import short_kernel_name
from stepscope.core.text.numbers import UNKNOWN, bandwidth, count, counted, milliseconds, percent, size
from stepscope.core.text.wording import bubble_parts, category_words
from stepscope.workflow.panels.elements import (
    Child,
    Column,
    Markup,
    clean,
    more,
    name,
    panel,
    share_bar,
    some_ranks,
    swatch,
    table,
    tag,
)

MOST_ROWS = 30
MOST_KERNELS = 20
LONGEST_KERNEL = 90
"""Characters of a kernel's name in a row; the tooltip has more."""
MOST_GROUPS = 12

_COLLECTIVES = [
    Column("Operation"), Column("Group"), Column("Size", True), Column("Calls", True), Column("Bus bandwidth", True),
    Column("Expected", True), Column("Transfer", True), Column("Wait", True), Column("Hidden", True),
    Column("Skew", True), Column("Last to arrive"),
]  # fmt: skip
_KERNELS = [
    Column("Kernel"), Column("Limited by"), Column("Decided by"), Column("Calls", True), Column("Time", True),
    Column("Share", True), Column("Of the roof", True),
]  # fmt: skip


def collectives(analysis: Analysis) -> Markup | None:
    """A row for each group, kind and size, the most expensive first; nothing on one rank."""
    if not analysis.collectives:
        return None
    ordered = sorted(analysis.collectives, key=lambda row: -((row.transfer_ms or 0.0) + (row.wait_ms or 0.0)))
    rows = [_collective(row, analysis.job.world_size) for row in ordered[:MOST_ROWS]]
    return panel(
        "How fast is the communication, and who arrives last?",
        table(_COLLECTIVES, rows, num_all=len(ordered), what="kinds of collectives"),
        key="collectives",
        note="Bandwidth from transfer time only: a call waits until its last rank arrives, the rest is transfer.",
    )


def pipeline(analysis: Analysis) -> Markup | None:
    """The bubble and its parts; nothing without a pipeline."""
    found = analysis.pipeline
    if found is None:
        return None
    parts = bubble_parts(found)
    largest = max(share for _, share, _, _ in parts)
    items = [
        tag("li", tag("span", what), share_bar(share, heading=heading, largest=largest),
            tag("b", percent(share), class_="num"), tag("span"), tag("span", meaning, class_="note"))
        for what, share, heading, meaning in parts
    ]  # fmt: skip
    chunks = f", {counted(found.chunks, 'chunk')} a stage" if found.chunks > 1 else ""
    layout = (
        f"{found.schedule}, {counted(found.stages, 'stage')}, {counted(found.micro_batches, 'micro-batch')}{chunks}"
    )
    note = f"{name(layout)}, period {milliseconds(found.period_ms)}"
    return panel(
        "How large is the pipeline's bubble, and why?", tag("ul", *items, class_="causes"), key="pipeline", note=note
    )


def kernels(analysis: Analysis) -> Markup | None:
    """Kernels by time with what limits them, and the same by operator and module; nothing without kernels."""
    roofline = analysis.roofline
    if not roofline.kernels:
        return None
    windows = sum(rank.window_ms for rank in analysis.ranks)
    coverage = roofline.coverage
    note = (
        f"Limits known from a model for {percent(coverage.costed)} of kernel time, by name for "
        f"{percent(coverage.by_name)}, unknown for {percent(coverage.none)}."
    )
    findings = [
        tag(
            "li",
            tag("b", f"{percent(f.fraction)} of the time: "),
            f.message,
            tag("span", f" {f.advice}", class_="note"),
        )
        for f in roofline.findings[:MOST_GROUPS]
    ]
    return panel(
        "Which kernels take the time, and what limits them?",
        tag("ul", *findings) if findings else None,
        more(len(roofline.findings) - len(findings), "findings"),
        _kernel_table(roofline.kernels, windows, MOST_KERNELS, "kernels"),
        _group("By operator", roofline.by_operator, windows, "operators"),
        _group("By module", roofline.by_module, windows, "modules"),
        key="kernels",
        note=note,
    )


def warnings(analysis: Analysis) -> Markup | None:
    """What else the reader must know."""
    if not analysis.warnings:
        return None
    items = [tag("li", w.message, " ", tag("code", name(w.code))) for w in analysis.warnings[:MOST_ROWS]]
    left_out = more(len(analysis.warnings) - len(items), "warnings")
    return panel("What else should you know?", tag("ul", *items), left_out, key="warnings")


def _group(title: str, rows: list[KernelTime], windows: float, what: str) -> Markup | None:
    if not rows:
        return None
    return tag("details", tag("summary", title), _kernel_table(rows, windows, MOST_GROUPS, what))


def _kernel_table(rows: list[KernelTime], windows: float, most: int, what: str) -> Markup:
    ordered = sorted(rows, key=lambda kernel: -kernel.ms)
    cells = [_kernel(kernel, windows) for kernel in ordered[:most]]
    return table(_KERNELS, cells, num_all=len(ordered), what=what)


def _kernel(kernel: KernelTime, windows: float) -> list[Child]:
    return [
        tag(
            "code", clean(short_kernel_name(kernel.name, most=LONGEST_KERNEL), LONGEST_KERNEL), title=name(kernel.name)
        ),
        tag("span", swatch(kernel.limit), category_words(kernel.limit), class_="whole"),
        name(kernel.decided_by.replace("_", " ")),
        count(kernel.count),
        milliseconds(kernel.ms),
        percent(kernel.ms / windows if windows else None),
        percent(kernel.roof_share),
    ]


def _collective(row: Collective, world_size: int) -> list[Child]:
    members = row.group.split(",")
    is_ranks = all(part.isdecimal() and len(part) < 10 for part in members)
    group = some_ranks([int(part) for part in members], world_size=world_size) if is_ranks else name(row.group)
    return [
        name(row.kind.replace("_", "-")),
        f"{name(row.dimension.upper())} · {group}" if row.dimension else group,
        size(row.bytes),
        count(row.count),
        bandwidth(row.busbw_gbs),
        bandwidth(row.expected_busbw_gbs),
        milliseconds(row.transfer_ms),
        milliseconds(row.wait_ms),
        percent(row.hidden),
        milliseconds(row.skew_ms),
        UNKNOWN if row.last_arriver is None else f"rank {row.last_arriver}",
    ]
