"""Which reasons do the kernels and copies give for a cause?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyzer.kernels.findings import MANY_TINY, pageable_share
from stepscope.analyzer.kernels.sums import Flag
from stepscope.core.analysis import Evidence, Job, KernelFinding, Roofline, RootCause
from stepscope.core.causes import Cause, Reason

REASON_FROM = 0.05
"""Share of all ranks' windows from which a finding is a reason: the share from which a loss is named beside others."""
MOSTLY_PAGEABLE = 0.5
RECOMPUTED_FROM = 0.15
"""Share of the executed FLOPs that are no model FLOPs: a forward pass run twice is a quarter of them, what flash
attention's own backward pass repeats at most a seventh."""

_OF_CAUSE = {
    Cause.COMPUTE_BOUND: (Flag.NO_TENSOR_CORES, Flag.INEFFICIENT_KERNELS),
    Cause.MEMORY_BOUND: (Flag.UNFUSED, Flag.INEFFICIENT_KERNELS),
    Cause.LATENCY_BOUND: (Flag.TINY_KERNELS,),
}
_FROM_MANY_LAUNCHES = (Cause.HOST_BOUND, Cause.DEVICE_GAP)
_REASONS = {
    Flag.NO_TENSOR_CORES: Reason.NO_TENSOR_CORES,
    Flag.INEFFICIENT_KERNELS: Reason.INEFFICIENT_KERNELS,
    Flag.UNFUSED: Reason.UNFUSED,
    Flag.TINY_KERNELS: Reason.TINY_KERNELS,
}


def with_kernel_reasons(rows: Sequence[RootCause], roofline: Roofline, job: Job) -> list[RootCause]:
    """The root-cause table with what the kernels and copies tell of its causes."""
    return [_with_reasons(row, roofline, job) for row in rows]


def _with_reasons(row: RootCause, roofline: Roofline, job: Job) -> RootCause:
    reasons, evidence = [], []
    recomputed = 1.0 - job.mfu / job.hfu if job.mfu is not None and job.hfu else 0.0
    if row.cause is Cause.COMPUTE_BOUND and recomputed >= RECOMPUTED_FROM:
        reasons.append(Reason.RECOMPUTE)
        evidence.append(Evidence("recomputed_share_of_flops", recomputed, "ratio", RECOMPUTED_FROM))
    found = {finding.code: finding for finding in roofline.findings}
    for flag in _OF_CAUSE.get(row.cause, ()):
        finding = found.get(flag.name.lower())
        share = 0.0 if finding is None else _share(row.cause, finding, roofline)
        if share >= REASON_FROM:
            reasons.append(_REASONS[flag])
            evidence.append(Evidence(f"{flag.name.lower()}_share", share, "ratio", REASON_FROM))
    tiny = roofline.tiny_kernels or 0.0
    if row.cause in _FROM_MANY_LAUNCHES and tiny >= MANY_TINY:
        reasons.append(Reason.TINY_KERNELS)
        evidence.append(Evidence("tiny_share_of_kernels", tiny, "ratio", MANY_TINY))
    pageable = pageable_share(roofline.copies) if row.cause is Cause.COPY else 0.0
    if pageable >= MOSTLY_PAGEABLE:
        reasons.append(Reason.PAGEABLE_MEMORY)
        evidence.append(Evidence("pageable_share_of_host_copies", pageable, "ratio", MOSTLY_PAGEABLE))
    return replace(row, reasons=[*row.reasons, *reasons], evidence=[*row.evidence, *evidence])


def _share(cause: Cause, finding: KernelFinding, roofline: Roofline) -> float:
    """Share of the windows that a finding holds for under a cause: of the kernels that the cause's heading has."""
    mine = [
        kernel.ms
        for kernel in roofline.kernels
        if finding.code in kernel.findings and kernel.limit.value == cause.value
    ]
    return min(sum(mine) / finding.ms * finding.fraction, finding.fraction)
