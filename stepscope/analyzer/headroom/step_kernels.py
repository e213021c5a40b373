"""Compute kernels of one step of a rank: what the models of headroom replace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.pipeline.passes import launched_by_optimizer
from stepscope.analyzer.roofline.kernel_costs import DTYPES
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.kernel_limits import KernelLimits
from stepscope.analyzer.roofline.operator_call import Floats, OperatorCall, parse_call
from stepscope.analyzer.roofline.operator_cost import recomputed
from stepscope.trace.columns import NONE, IntColumn, Shapes, TraceColumns
from stepscope.trace.rows import distinct

MAX_KERNELS = 40_000
"""A step of more kernels is not modelled, which bounds a view's size."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class StepKernels:
    """Compute kernels of one step in order of their starts; one entry a kernel, nan and NONE are unknown.

    Attributes:
        names, operators, calls: distinct names of kernels and of operators, and what operators were called with.
        name, operator, call: index into these.
        work: number of the operator's call, equal for the kernels that it launched.
        duration_ns: mean over the captured steps with the same kernels.
        by_main: launched from the thread of the training loop, mostly the forward pass and the optimizer.
        by_optimizer: launched by the optimizer's step.
        num_blocks: size of its grid.
        repeats_forward: part of a forward pass that runs again inside of the backward pass.
        family: kernel_family.Family codes.
        dtype: index into kernel_costs.DTYPES, of the matrix operands.
        flops, num_bytes: least work of the kernel by its operator's cost model.
    """

    names: list[str]
    operators: list[str]
    calls: list[Shapes]
    name: IntColumn
    operator: IntColumn
    call: IntColumn
    work: IntColumn
    stream: IntColumn
    duration_ns: Floats
    by_main: Flags
    by_optimizer: Flags
    num_blocks: IntColumn
    repeats_forward: Flags
    family: IntColumn
    dtype: IntColumn
    flops: Floats
    num_bytes: Floats

    def __len__(self) -> int:
        return len(self.name)

    @property
    def total_ns(self) -> float:
        """Time of all kernels, one after the other."""
        return float(self.duration_ns.sum())

    def is_of(self, *families: Family) -> Flags:
        """Whether each kernel is of one of these families."""
        return np.isin(self.family, families)

    def operator_of(self, at: int) -> str:
        """Name of the operator that launched a kernel; "" where unknown."""
        place = int(self.operator[at])
        return "" if place == NONE else self.operators[place]

    def call_of(self, at: int) -> OperatorCall | None:
        """What the operator of a kernel was called with; None where not recorded."""
        place = int(self.call[at])
        return None if place == NONE else _parsed(self.calls[place])

    def dtype_of(self, at: int) -> str:
        """Element type of a kernel's matrix operands, as in core.hardware; "" without any."""
        return DTYPES[int(self.dtype[at])]

    def works(self) -> list[IntColumn]:
        """Positions of the kernels of each call of an operator, by the call's number."""
        known = np.flatnonzero(self.work != NONE)
        order = known[np.argsort(self.work[known], kind="stable")]
        return np.split(order, np.flatnonzero(np.diff(self.work[order])) + 1) if len(order) else []

    def main_kernels(self, *families: Family) -> list[tuple[IntColumn, int]]:
        """Of each call that multiplies with kernels of some families: all its kernels, and the longest of those."""
        own = np.flatnonzero(self.is_of(*families) & (self.dtype > 0) & (self.work != NONE))
        longest = own[np.argsort(self.duration_ns[own], kind="stable")]
        main = dict(zip(self.work[longest].tolist(), longest.tolist(), strict=True))  # the last one wins
        works = self.works() if main else []
        return [(works[work], main[work]) for work in sorted(main)]


_parsed = lru_cache(maxsize=4096)(parse_call)


class _Tables(NamedTuple):
    values: list[int]
    code: IntColumn


def step_kernels(
    trace: TraceColumns, activities: Activities, steps: HostSteps, limits: KernelLimits
) -> StepKernels | None:
    """The kernels of the captured step whose kernels take the median time; None without one, or if they are too many.

    Args:
        limits: of the compute kernels among the activities, in order.
    """
    kernels = activities.of(Work.COMPUTE)
    step = np.where(activities.launch_ns[kernels] == NONE, NONE, steps.position_of(activities.launch_ns[kernels]))
    present = distinct(step[step != NONE])
    if not len(present):
        return None
    duration = limits.duration_ns.astype(np.float64)
    totals = [float(duration[step == one].sum()) for one in present.tolist()]
    chosen = int(present[int(np.argsort(totals, kind="stable")[len(totals) // 2])])
    own = np.flatnonzero(step == chosen)
    if len(own) > MAX_KERNELS:
        return None
    row = activities.row[kernels]
    alike = [
        places
        for one in present.tolist()
        if len(places := np.flatnonzero(step == one)) == len(own)
        and np.array_equal(trace.name[row[places]], trace.name[row[own]])
    ]
    operator = limits.operator[own]
    names = _numbered(trace.name[row[own]])
    operators = _numbered(np.where(operator != NONE, trace.name[operator], NONE))
    calls = _numbered(np.where(operator != NONE, trace.shapes[operator], NONE))
    _, launch, in_launch = np.unique(activities.launch_row[kernels[own]], return_inverse=True, return_counts=True)
    is_alone = in_launch[launch] == 1  # a graph's launch does not tell its parts apart
    by_main = activities.launch_lane[kernels[own]] == steps.main_lane
    launch_ns = activities.launch_ns[kernels[own]]
    backward_ends_ns = launch_ns[~by_main].max(initial=0)  # a closure runs the whole step inside of the optimizer's
    by_optimizer = launched_by_optimizer(trace, activities, kernels, steps)[own] & is_alone
    by_optimizer &= launch_ns > backward_ends_ns
    return StepKernels(
        names=[trace.names[name] for name in names.values],
        operators=[trace.names[name] for name in operators.values],
        calls=[trace.shape_table[place] for place in calls.values],
        name=names.code,
        operator=operators.code,
        call=calls.code,
        work=_numbered(operator).code,
        stream=activities.stream[kernels[own]].astype(np.int64),
        duration_ns=np.mean([duration[places] for places in alike], axis=0),
        by_main=by_main,
        by_optimizer=by_optimizer,
        num_blocks=trace.num_blocks(row[own]),
        repeats_forward=recomputed(trace, operator),
        family=limits.family[own].astype(np.int64),
        dtype=limits.dtype[own].astype(np.int64),
        flops=limits.flops[own],
        num_bytes=limits.num_bytes[own],
    )


def _numbered(column: IntColumn) -> _Tables:
    """Values of a column by number, in order of their first use, and the numbers; NONE stays NONE."""
    values: dict[int, int] = {}
    code = [NONE if value == NONE else values.setdefault(value, len(values)) for value in column.tolist()]
    return _Tables(list(values), np.array(code, np.int64))
