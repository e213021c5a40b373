"""Panel of the kernels by time: what limits them, and what would make them faster."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.documents.analysis import Analysis, CopyTime, KernelFinding, KernelTime, Roofline
from stepscope.core.text.evidence import unknown_kernels_words
from stepscope.core.text.numbers import UNKNOWN, bandwidth, count, milliseconds, percent, short_kernel_name, size
from stepscope.core.text.wording import category_words
from stepscope.workflow.panels import elements as html

MAX_KERNELS = 20
MAX_FINDINGS = 12

_KERNEL_COLUMNS = [
    html.Column(
        "Limited by", hint="below it how that was decided: model: from shapes and dtypes; by name: from its family"
    ),
    html.number_column("Calls"),
    html.number_column("Mean", "duration of one kernel"),
    html.number_column("Time", "owned in the ledger, over all ranks and steps"),
    html.number_column("Share", "of all ranks' windows"),
    html.number_column("% of roofline", "least time at the GPU's peaks / duration, where a model knows it"),
    html.number_column(
        "Occupancy",
        "share of a multiprocessor's warps that the launch can keep resident, and what keeps that from being more",
    ),
    html.Column("Findings"),
]
_COPY_COLUMNS = [
    html.Column("Copies"),
    html.number_column("Calls"),
    html.number_column("Bytes"),
    html.number_column("Time", "duration, over all ranks and steps"),
    html.number_column("Bandwidth"),
    html.number_column("Link", "what the host's link carries in one direction"),
]


def kernels_panel(analysis: Analysis) -> html.Element | None:
    """Panel of the kernels with the most time by name, operator, module and call, and the copies."""
    roofline = analysis.roofline
    if not roofline.kernels:
        return None
    coverage, unknown = roofline.coverage, unknown_kernels_words(roofline.unknown)
    return html.panel(
        "Which kernels take the time, and what limits them?",
        _findings(roofline.findings),
        html.tag("p", html.name(unknown), class_="ss-note") if unknown else None,
        html.tabs("kernels", _groupings(roofline, sum(rank.window_ms for rank in analysis.ranks))),
        key="kernels",
        note=(
            f"limits known from a model for {percent(coverage.costed)} of kernel time, "
            f"by name for {percent(coverage.by_name)}, unknown for {percent(coverage.none)}"
        ),
        source=(
            "Two floors from an operator's shapes and dtypes: FLOPs / peak, fewest bytes / memory bandwidth. The "
            "larger one limits; a small kernel far above both is limited by latency. Occupancy is CUDA's own "
            "calculation from registers, shared memory, block and grid."
        ),
    )


def _findings(findings: Sequence[KernelFinding]) -> html.Child:
    """What is wrong with the kernels, the largest share of the time first."""
    if not findings:
        return None
    items = [
        html.tag(
            "li",
            html.tag("span", percent(finding.fraction), class_="ss-finding-share"),
            html.tag("span", html.tag("b", _spaced(finding.code)), " · ", finding.message),
            html.tag("span", finding.advice, class_="ss-note"),
        )
        for finding in findings[:MAX_FINDINGS]
    ]
    return [html.tag("ul", items, class_="ss-findings"), html.more(len(findings) - len(items), "findings")]


def _groupings(roofline: Roofline, windows_ms: float) -> dict[str, html.Child]:
    groupings = {
        "Name": ("Kernel", roofline.kernels),
        "Operator": ("Operator", roofline.by_operator),
        "Module": ("Module or region", roofline.by_module),
        "Call": ("Operator and shapes", roofline.by_call),
    }
    tables: dict[str, html.Child] = {
        title: _table(column, kernels, windows_ms) for title, (column, kernels) in groupings.items() if kernels
    }
    if roofline.copies:
        tables["Copies"] = html.table(
            _COPY_COLUMNS, [_copy(copy) for copy in roofline.copies], caption="Copies by kind"
        )
    return tables


def _table(column: str, kernels: Sequence[KernelTime], windows_ms: float) -> html.Child:
    shown = sorted(kernels, key=lambda kernel: -kernel.ms)[:MAX_KERNELS]
    return html.table(
        [html.Column(column), *_KERNEL_COLUMNS],
        [_kernel(kernel, windows_ms) for kernel in shown],
        caption=f"By {column.lower()}: the {len(shown)} with the most time",
        num_all=len(kernels),
        class_="ss-kernels",
    )


def _kernel(kernel: KernelTime, windows_ms: float) -> list[html.Child]:
    title = html.name(short_kernel_name(kernel.name, max_length=html.MAX_NAME_CHARS))
    origin = " · ".join(
        part for part in (kernel.operator, kernel.module, kernel.shapes) if part and part not in kernel.name
    )
    limit = html.tag("span", html.swatch(kernel.limit), category_words(kernel.limit), class_="ss-with-swatch")
    return [
        [
            html.tag("code", title, title=html.clean(kernel.name), class_="ss-kernel-name"),
            html.tag("div", html.name(origin), title=html.clean(origin), class_="ss-note ss-kernel-name")
            if origin
            else None,
        ],
        [limit, html.tag("div", html.name(_spaced(kernel.decided_by)), class_="ss-note")],
        count(kernel.count),
        milliseconds(None if kernel.mean_us is None else kernel.mean_us / 1e3),
        milliseconds(kernel.ms),
        percent(kernel.ms / windows_ms if windows_ms else None),
        percent(kernel.roof_share, decimals=0),
        _occupancy(kernel),
        [html.tag("span", _spaced(code), class_="ss-flag") for code in kernel.findings],
    ]


def _occupancy(kernel: KernelTime) -> html.Child:
    if kernel.occupancy is None and kernel.limiter is None:
        return UNKNOWN
    launch = []
    if kernel.grid and kernel.block:
        launch.append(f"grid {' x '.join(map(str, kernel.grid))}, block {' x '.join(map(str, kernel.block))}")
    if kernel.registers_per_thread is not None:
        launch.append(f"{kernel.registers_per_thread} registers a thread")
    if kernel.shared_memory_bytes is not None:
        launch.append(f"{size(kernel.shared_memory_bytes)} shared memory a block")
    limiter = html.tag("div", _spaced(kernel.limiter or ""), class_="ss-note")
    return html.tag("div", percent(kernel.occupancy, decimals=0), limiter, title="; ".join(launch))


def _copy(copy: CopyTime) -> list[html.Child]:
    link = UNKNOWN if copy.link_gbs is None else bandwidth(copy.link_gbs)
    return [html.name(copy.kind), count(copy.count), size(copy.bytes), milliseconds(copy.ms), bandwidth(copy.gbs), link]


def _spaced(code: str) -> str:
    return code.replace("_", " ")
