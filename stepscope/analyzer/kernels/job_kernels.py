"""Kernels of the job: all ranks' sums joined into tables, findings, advice and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels import rank_kernels
from stepscope.analyzer.kernels.flags import ADVICE, MESSAGES, Columns, Flag, SumColumn, flagged_ns
from stepscope.analyzer.kernels.low_parallelism import more_blocks
from stepscope.analyzer.kernels.occupancy import Limiter
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.roofline.kernel_costs import DecidedBy
from stepscope.analyzer.roofline.kernel_traits import kernel_traits
from stepscope.core.documents.analysis import (
    AnalysedJob,
    CopyTime,
    KernelFinding,
    KernelTime,
    Roofline,
    RooflineCoverage,
    RootCause,
    UnknownKernels,
)
from stepscope.core.text.numbers import counted, short_kernel_name
from stepscope.core.vocabulary import CATEGORY_ORDER, Cause, Evidence, Reason

NUM_GROUPS_SHOWN = 20
"""Operators, modules and calls in the document, largest first."""
MAX_STEPS_KEPT = 20
"""Steps of each kernel name in the document: 10 kB for 50 names, and enough for the noise of a comparison."""
FLAGGED_SHARE = 0.5
"""Least share of a group's time that has a flag for the group to have the finding."""


def kernel_table(groups: Iterable[rank_kernels.KernelGroups], *, most: int | None = None) -> list[KernelTime]:
    """Join one kind of groups of kernels over all ranks, largest first."""
    sums: dict[str, npt.NDArray[np.float64]] = {}
    examples: dict[str, tuple[float, rank_kernels.KernelExample]] = {}
    for part in groups:
        for key, row, example in zip(part.keys, part.sums, part.examples, strict=True):
            sums[key] = sums[key] + row if key in sums else row
            if key not in examples or examples[key][0] < row[SumColumn.OWNED_NS]:
                examples[key] = float(row[SumColumn.OWNED_NS]), example
    kept = sorted(sums, key=lambda key: -sums[key][SumColumn.OWNED_NS])[:most]
    return [_kernel_time(key, sums[key], examples[key][1]) for key in kept]


def _kernel_tables(ranks: Sequence[rank_kernels.RankKernels]) -> dict[str, list[KernelTime]]:
    """All tables of kernels by field of the Roofline document."""
    return {
        "kernels": _with_steps(kernel_table(rank.by_name for rank in ranks), ranks),
        "by_operator": kernel_table((rank.by_operator for rank in ranks), most=NUM_GROUPS_SHOWN),
        "by_module": kernel_table((rank.by_module for rank in ranks), most=NUM_GROUPS_SHOWN),
        "by_call": kernel_table((rank.by_call for rank in ranks), most=NUM_GROUPS_SHOWN),
    }


def _with_steps(table: list[KernelTime], ranks: Sequence[rank_kernels.RankKernels]) -> list[KernelTime]:
    """The table with milliseconds in each step that is whole on every rank: means over ranks, absent names count 0."""
    common = set.intersection(*(set(rank.steps_by_name.index) for rank in ranks)) if ranks else set()
    steps = sorted(common)[:MAX_STEPS_KEPT]
    time = {row.name: np.zeros(len(steps)) for row in table}
    for rank in ranks:
        place = [rank.steps_by_name.index.index(step) for step in steps]
        for name, owned_ns in zip(rank.by_name.keys, rank.steps_by_name.owned_ns, strict=True):
            time[name] += owned_ns[place] / (1e6 * len(ranks))
    return [replace(_with_traits(row), step_ms=[round(float(ms), 6) for ms in time[row.name]]) for row in table]


def _with_traits(row: KernelTime) -> KernelTime:
    """The row of a kernel's name with what that tells."""
    traits = kernel_traits(row.name)
    operation = traits.family.name.lower() if traits.is_known else None
    return replace(row, operation=operation, element_type=traits.dtype, layout=traits.layout)


def _unknown_kernels(total: npt.NDArray[np.float64], kernels: Sequence[KernelTime]) -> UnknownKernels | None:
    """What of the kernels nobody knows by name; None without kernels."""
    if not total[SumColumn.COUNT] or total[SumColumn.OWNED_NS] <= 0:
        return None
    return UnknownKernels(
        count=int(total[SumColumn.UNKNOWN_COUNT]),
        share=float(total[SumColumn.UNKNOWN_NS] / total[SumColumn.OWNED_NS]),
        names=[row.name for row in kernels if row.operation is None][:NUM_UNKNOWN_SHOWN],
    )


NUM_UNKNOWN_SHOWN = 5


def _kernel_time(key: str, sums: npt.NDArray[np.float64], example: rank_kernels.KernelExample) -> KernelTime:
    """Row of a group; its limit is that of most of its time."""
    limiter = Limiter(int(sums[Columns.LIMITERS].argmax()))
    launch = example.launch
    return KernelTime(
        name=key,
        count=int(sums[SumColumn.COUNT]),
        ms=float(sums[SumColumn.OWNED_NS]) / 1e6,
        limit=CATEGORY_ORDER[int(sums[Columns.CATEGORIES].argmax())],
        decided_by=DecidedBy(int(sums[Columns.DECIDED].argmax())).name.lower(),
        operator=example.operator,
        module=example.module,
        shapes=example.shapes,
        mean_us=_ratio(sums[SumColumn.DURATION_NS], sums[SumColumn.COUNT] * 1e3),
        roof_share=_ratio(sums[SumColumn.FLOOR_NS], sums[SumColumn.MODELLED_NS]),
        occupancy=_ratio(sums[SumColumn.OCCUPIED_NS], sums[SumColumn.FITTED_NS]),
        achieved_occupancy=_ratio(sums[SumColumn.ACHIEVED_NS], sums[SumColumn.FITTED_NS]),
        limiter=None if limiter is Limiter.UNKNOWN else limiter.name.lower(),
        grid=list(launch.grid),
        block=list(launch.block),
        registers_per_thread=launch.registers_per_thread,
        shared_memory_bytes=launch.shared_memory_bytes,
        findings=[
            flag.name.lower() for flag in Flag if flagged_ns(sums, flag) >= FLAGGED_SHARE * sums[SumColumn.OWNED_NS]
        ],
    )


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _copy_table(copies: Iterable[rank_kernels.CopySums]) -> list[CopyTime]:
    """Memory copies of all ranks by kind, those with most time first."""
    sums: dict[str, rank_kernels.CopySums] = {}
    for copy in copies:
        sums[copy.kind] = sums[copy.kind] + copy if copy.kind in sums else copy
    return [
        CopyTime(
            kind=copy.kind,
            count=copy.count,
            ms=copy.duration_ns / 1e6,
            bytes=copy.num_bytes,
            gbs=_ratio(copy.num_bytes, copy.sized_ns),
            link_gbs=None if copy.link_bytes_per_second is None else copy.link_bytes_per_second / 1e9,
        )
        for copy in sorted(sums.values(), key=lambda copy: -copy.duration_ns)
    ]


SHOWN_SHARE = 0.01
"""Least share of the ranks' windows for a finding to be shown."""
MANY_TINY = 0.5
"""Least share of tiny kernels, by number, from which on launching, not work, determines the step."""
PAGEABLE_COPIES = "pageable_copies"


def _kernel_findings(
    total: npt.NDArray[np.float64], kernels: Sequence[KernelTime], copies: Sequence[CopyTime], window_ms: float
) -> list[KernelFinding]:
    """Findings on a job's kernels (by name) and memory copies (by kind).

    `total` has the sums over all ranks, shape (flags.SIZE,); `window_ms` is all ranks' windows together.
    """
    found = [_of_flag(flag, total, kernels, window_ms) for flag in Flag if _is_worth_saying(flag, total, window_ms)]
    pageable = [copy for copy in copies if rank_kernels.is_pageable(copy.kind)]
    time = sum(copy.ms for copy in pageable)
    if window_ms and time >= SHOWN_SHARE * window_ms:
        found.append(_of_copies(pageable, time, window_ms))
    return sorted(found, key=lambda finding: -finding.fraction)


def _is_worth_saying(flag: Flag, total: npt.NDArray[np.float64], window_ms: float) -> bool:
    if not window_ms or flagged_ns(total, flag) / 1e6 < SHOWN_SHARE * window_ms:
        return False
    return flag is not Flag.TINY_KERNELS or (_tiny_kernel_share(total) or 0.0) >= MANY_TINY


def _tiny_kernel_share(total: npt.NDArray[np.float64]) -> float | None:
    """Share of the kernels that are tiny, by number; None without kernels."""
    return float(total[SumColumn.TINY_COUNT] / total[SumColumn.COUNT]) if total[SumColumn.COUNT] else None


def _of_flag(
    flag: Flag, total: npt.NDArray[np.float64], kernels: Sequence[KernelTime], window_ms: float
) -> KernelFinding:
    time = flagged_ns(total, flag) / 1e6
    message = f"{time * 1e6 / total[SumColumn.OWNED_NS]:.0%} of kernel time is in {MESSAGES[flag]}"
    if flag is Flag.TINY_KERNELS:
        message = f"{_tiny_kernel_share(total):.0%} of the kernels, and {message[0].lower()}{message[1:]}"
    worst = next((kernel for kernel in kernels if flag.name.lower() in kernel.findings), None)
    if worst is not None:
        where = f" ({worst.operator})" if worst.operator else ""
        message += f"; the largest is {short_kernel_name(worst.name)}{where}"
    advice = more_blocks(worst) if flag is Flag.SMALL_GRID else ADVICE[flag]
    return KernelFinding(flag.name.lower(), time / window_ms, time, message, advice)


def _of_copies(pageable: Sequence[CopyTime], time: float, window_ms: float) -> KernelFinding:
    num_bytes = sum(copy.bytes for copy in pageable)
    rate = f"{num_bytes / time / 1e6:.1f} GB/s"
    link = next((copy.link_gbs for copy in pageable if copy.link_gbs is not None), None)
    against = "" if link is None else f" of the {link:.0f} GB/s that the link carries"
    copies = counted(sum(copy.count for copy in pageable), "copy")
    message = f"{copies} from or to pageable memory ran at {rate}{against}"
    advice = "pin_memory=True in the loader, and .to(device, non_blocking=True)"
    return KernelFinding(PAGEABLE_COPIES, time / window_ms, time, message, advice)


def are_to_host(copies: Sequence[CopyTime]) -> bool:
    """Whether pageable copies from the GPU to the host take longer than those to the GPU."""
    pageable = [copy for copy in copies if rank_kernels.is_pageable(copy.kind)]
    to_host = sum(copy.ms for copy in pageable if "DtoH" in copy.kind)
    return to_host > sum(copy.ms for copy in pageable) / 2


def _pageable_share(copies: Sequence[CopyTime]) -> float:
    """Share of copies from or to pageable memory in the time of all copies over the host's link."""
    over_link = sum(copy.ms for copy in copies if rank_kernels.takes_host_link(copy.kind))
    return sum(copy.ms for copy in copies if rank_kernels.is_pageable(copy.kind)) / over_link if over_link else 0.0


REASON_THRESHOLD = 0.05
"""Least share of all ranks' windows for a finding to be a reason, as for a secondary cause."""
MOSTLY_PAGEABLE = 0.5
RECOMPUTED_THRESHOLD = 0.15
"""Least share of executed FLOPs that are recomputation: a forward pass run twice is a quarter of them, recomputation in
flash attention's backward pass at most a seventh."""

_OF_CAUSE = {
    Cause.COMPUTE_BOUND: (Flag.NO_TENSOR_CORES, Flag.INEFFICIENT_KERNELS),
    Cause.MEMORY_BOUND: (Flag.UNFUSED, Flag.INEFFICIENT_KERNELS),
    Cause.LATENCY_BOUND: (Flag.TINY_KERNELS,),
}
_FROM_MANY_LAUNCHES = (Cause.HOST_BOUND, Cause.DEVICE_GAP)


def with_kernel_reasons(row: RootCause, roofline: Roofline, job: AnalysedJob) -> RootCause:
    """Kernels: a root cause with the reasons that kernels and copies show."""
    reasons, evidence = [], []
    recomputed = 1.0 - job.mfu / job.hfu if job.mfu is not None and job.hfu else 0.0
    if row.cause is Cause.COMPUTE_BOUND and recomputed >= RECOMPUTED_THRESHOLD:
        reasons.append(Reason.RECOMPUTE)
        evidence.append(Evidence("recomputed_share_of_flops", recomputed, "ratio", RECOMPUTED_THRESHOLD))
    found = {finding.code: finding for finding in roofline.findings}
    for flag in _OF_CAUSE.get(row.cause, ()):
        finding = found.get(flag.name.lower())
        share = 0.0 if finding is None else _share(row.cause, finding, roofline)
        if share >= REASON_THRESHOLD:
            reasons.append(Reason(flag.name.lower()))
            evidence.append(Evidence(f"{flag.name.lower()}_share", share, "ratio", REASON_THRESHOLD))
    tiny = roofline.tiny_kernels or 0.0
    if row.cause in _FROM_MANY_LAUNCHES and tiny >= MANY_TINY:
        reasons.append(Reason.TINY_KERNELS)
        evidence.append(Evidence("tiny_share_of_kernels", tiny, "ratio", MANY_TINY))
    pageable = _pageable_share(roofline.copies) if row.cause is Cause.COPY else 0.0
    if pageable >= MOSTLY_PAGEABLE:
        reasons.append(Reason.PAGEABLE_MEMORY)
        evidence.append(Evidence("pageable_share_of_host_copies", pageable, "ratio", MOSTLY_PAGEABLE))
    return replace(row, reasons=[*row.reasons, *reasons], evidence=[*row.evidence, *evidence])


def _share(cause: Cause, finding: KernelFinding, roofline: Roofline) -> float:
    """Share of the windows of a finding's kernels that are in the cause's category."""
    flagged_kernels = (kernel for kernel in roofline.kernels if finding.code in kernel.findings)
    mine = sum(kernel.ms for kernel in flagged_kernels if kernel.limit.value == cause.value)
    return min(mine / finding.ms * finding.fraction, finding.fraction)


def kernel_section(views: Mapping[int, RankView]) -> Roofline:
    """Kernels and copies of all ranks as a section of the analysis, and how the kernels' limits were decided."""
    ranks = [view.kernel_sums for view in views.values()]
    tables = _kernel_tables(ranks)
    total = np.sum([rank.total for rank in ranks], axis=0)
    copies = _copy_table(copy for rank in ranks for copy in rank.copies)
    window_ms = sum(view.window_ns for view in views.values()) / 1e6
    parts = [view.coverage for view in views.values()]
    shares = {
        part.name: sum(getattr(p, part.name) for p in parts) / max(len(parts), 1) for part in fields(RooflineCoverage)
    }
    return Roofline(
        RooflineCoverage(**shares),
        **tables,
        copies=copies,
        tiny_kernels=_tiny_kernel_share(total),
        unknown=_unknown_kernels(total, tables["kernels"]),
        findings=_kernel_findings(total, tables["kernels"], copies, window_ms),
    )
