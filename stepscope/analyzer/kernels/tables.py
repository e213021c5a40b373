"""Which kernels hold the job's time, by name, operator, module and call? All ranks' sums, joined and put in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.copies import CopySums
from stepscope.analyzer.kernels.occupancy import Limiter
from stepscope.analyzer.kernels.rank_kernels import Example, KernelGroups, RankKernels
from stepscope.analyzer.kernels.sums import (
    ACHIEVED_NS,
    COUNT,
    DECIDED,
    DURATION_NS,
    FITTED_NS,
    FLOOR_NS,
    HEADINGS,
    LIMITERS,
    MODELLED_NS,
    OCCUPIED_NS,
    OWNED_NS,
    Flag,
    flagged,
)
from stepscope.analyzer.roofline.kernel_costs import DecidedBy
from stepscope.core.analysis import CopyTime, KernelTime
from stepscope.core.timeline import HEADING_ORDER

NUM_GROUPS_SHOWN = 20
"""Operators, modules and calls in the document, by time."""
MOST_STEPS_KEPT = 20
"""Steps of each kernel name in the document: 10 kB for 50 names, and enough for the noise of a comparison."""
FLAGGED_FROM = 0.5
"""A group has a finding when it holds for at least this share of its time."""


def kernel_table(groups: Iterable[KernelGroups], *, most: int | None = None) -> list[KernelTime]:
    """Join one kind of groups over all ranks, largest first."""
    sums: dict[str, npt.NDArray[np.float64]] = {}
    examples: dict[str, tuple[float, Example]] = {}
    for part in groups:
        for key, row, example in zip(part.keys, part.sums, part.examples, strict=True):
            sums[key] = sums[key] + row if key in sums else row
            if key not in examples or examples[key][0] < row[OWNED_NS]:
                examples[key] = float(row[OWNED_NS]), example
    kept = sorted(sums, key=lambda key: -sums[key][OWNED_NS])[:most]
    return [_kernel_time(key, sums[key], examples[key][1]) for key in kept]


def kernel_tables(ranks: Sequence[RankKernels]) -> dict[str, list[KernelTime]]:
    """All tables by their field in core.analysis.Roofline."""
    return {
        "kernels": _with_steps(kernel_table(rank.by_name for rank in ranks), ranks),
        "by_operator": kernel_table((rank.by_operator for rank in ranks), most=NUM_GROUPS_SHOWN),
        "by_module": kernel_table((rank.by_module for rank in ranks), most=NUM_GROUPS_SHOWN),
        "by_call": kernel_table((rank.by_call for rank in ranks), most=NUM_GROUPS_SHOWN),
    }


def _with_steps(table: list[KernelTime], ranks: Sequence[RankKernels]) -> list[KernelTime]:
    """Each name's milliseconds in the steps that are whole on every rank, the mean over ranks; a rank that does not
    keep a name adds nothing to it."""
    common = set.intersection(*(set(rank.steps_by_name.index) for rank in ranks)) if ranks else set()
    steps = sorted(common)[:MOST_STEPS_KEPT]
    time = {row.name: np.zeros(len(steps)) for row in table}
    for rank in ranks:
        place = [rank.steps_by_name.index.index(step) for step in steps]
        for name, owned_ns in zip(rank.by_name.keys, rank.steps_by_name.owned_ns, strict=True):
            time[name] += owned_ns[place] / (1e6 * len(ranks))
    return [replace(row, step_ms=[round(float(ms), 6) for ms in time[row.name]]) for row in table]


def _kernel_time(key: str, sums: npt.NDArray[np.float64], example: Example) -> KernelTime:
    """A group's limit is the one that most of its time has."""
    limiter = Limiter(int(sums[LIMITERS].argmax()))
    launch = example.launch
    return KernelTime(
        name=key,
        count=int(sums[COUNT]),
        ms=float(sums[OWNED_NS]) / 1e6,
        limit=HEADING_ORDER[int(sums[HEADINGS].argmax())],
        decided_by=DecidedBy(int(sums[DECIDED].argmax())).name.lower(),
        operator=example.operator,
        module=example.module,
        shapes=example.shapes,
        mean_us=_ratio(sums[DURATION_NS], sums[COUNT] * 1e3),
        roof_share=_ratio(sums[FLOOR_NS], sums[MODELLED_NS]),
        occupancy=_ratio(sums[OCCUPIED_NS], sums[FITTED_NS]),
        achieved_occupancy=_ratio(sums[ACHIEVED_NS], sums[FITTED_NS]),
        limiter=None if limiter is Limiter.UNKNOWN else limiter.name.lower(),
        grid=list(launch.grid),
        block=list(launch.block),
        registers_per_thread=launch.registers_per_thread,
        shared_memory_bytes=launch.shared_memory_bytes,
        findings=[flag.name.lower() for flag in Flag if flagged(sums, flag) >= FLAGGED_FROM * sums[OWNED_NS]],
    )


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def copy_table(copies: Iterable[CopySums]) -> list[CopyTime]:
    """Copies of all ranks by kind, those with most time first."""
    sums: dict[str, CopySums] = {}
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
