"""Kernels of one rank: time by name, operator, module and call, and its copies, as sums that can be added over ranks.

Kernels with equal name, operator, module, shapes and launch are summed once, by interned ids; all groups are then
built from these few combinations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.kernels.flags import Columns, Flag, Mask, SumColumn, Sums, flag_kernels
from stepscope.analyzer.kernels.occupancy import LaunchFit, fit_launches, has_nvidia_limits
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import Window
from stepscope.analyzer.roofline.kernel_limits import SHORT_KERNEL_NS, KernelLimits
from stepscope.analyzer.roofline.kernel_operator import innermost_on_thread, innermost_open
from stepscope.analyzer.roofline.kernel_traits import is_unknown
from stepscope.core.hardware.gpu_catalogue import PCIE_BYTES_PER_SECOND
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory
from stepscope.trace.columns import NONE, Category, IntColumn, KernelLaunch, TraceColumns, TraceDevice
from stepscope.trace.rows import combinations, distinct

_MODULE_FRAME = "nn.Module: "
_NO_REGION = re.compile(r"^(ProfilerStep#|nccl:|gloo:|c10d::|enumerate\(DataLoader\)#|\[pl]\[)|##")
"""Annotations of the whole step, of communication and of loading, which are not parts of the model."""
_INSTANCE = re.compile(r"_\d+$")


def _launching_regions(trace: TraceColumns, launch: IntColumn) -> npt.NDArray[np.intp]:
    """For each launch (a row, or NONE), the row of the innermost module or annotation open at it, or NONE.

    Frames of modules exist when the profiler recorded stacks or modules; annotations come from users (record_function),
    the optimizer and FSDP. Backward is launched from a thread of its own, mostly without either: there what is open on
    the training loop's thread counts, which waits for it.
    """
    found = np.full(len(launch), NONE, np.intp)
    modules = trace.rows_named(lambda name: name.startswith(_MODULE_FRAME), Category.PYTHON_FUNCTION)
    regions = trace.rows_named(lambda name: not _NO_REGION.search(name), Category.USER_ANNOTATION)
    rows = np.sort(np.concatenate((modules, regions)))
    linked = np.flatnonzero(launch != NONE)
    if not len(rows) or not len(linked):
        return found
    found[linked] = innermost_open(trace, rows, launch[linked])
    lane = trace.lane[rows]
    of_loop = rows[lane == np.bincount(lane).argmax()]
    missing = linked[found[linked] == NONE]
    found[missing] = innermost_on_thread(trace, of_loop, launch[missing])
    return found


def _region_name(name: str) -> str:
    """A module's or annotation's name without the profiler's prefix."""
    return name.removeprefix(_MODULE_FRAME)


def _region_kind(name: str) -> str:
    """`_region_name` without the instance number of a module, so that layers of one class are summed."""
    if not name.startswith(_MODULE_FRAME):
        return name
    return _INSTANCE.sub("", _region_name(name))


NUM_NAMES_KEPT = 50
NUM_GROUPS_KEPT = 20
"""Kernel names, and operators, modules and calls, kept of a rank, largest first."""
MAX_SHAPES_CHARACTERS = 200
"""Lists of tensors have thousands."""

NOT_KNOWN = "(not known)"
_NO_LAUNCH = KernelLaunch((), (), None, None)


class KernelExample(NamedTuple):
    """Origin of the largest part of a group of kernels; None where unknown."""

    operator: str | None
    module: str | None
    shapes: str | None
    launch: KernelLaunch


class KernelGroups(NamedTuple):
    """Groups of kernels by some key, largest first. Entry i of each belongs to group i."""

    keys: list[str]
    sums: Sums
    examples: list[KernelExample]


@dataclass(frozen=True, slots=True)
class KernelStepTimes:
    """Owned time of the kernels of each kept name in each whole step, by their start.

    Attributes:
        index: numbers of the steps.
        owned_ns: shape (names, steps), names as in RankKernels.by_name.
    """

    index: list[int]
    owned_ns: Sums


@dataclass(frozen=True, slots=True)
class RankKernels:
    """One rank's compute kernels, and the copies in its window.

    `total` has shape (Columns.SIZE,): of all kernels, also of those whose group is not kept.
    """

    by_name: KernelGroups
    by_operator: KernelGroups
    by_module: KernelGroups
    by_call: KernelGroups
    total: Sums
    copies: list[CopySums]
    steps_by_name: KernelStepTimes


class _Combinations(NamedTuple):
    """Combinations of kernel properties, as indices into the trace's tables (NONE: unknown), with their sums."""

    trace: TraceColumns
    name: IntColumn
    operator: IntColumn
    module: IntColumn
    shapes: IntColumn
    launch: IntColumn
    sums: Sums

    def operator_at(self, at: int) -> str:
        return NOT_KNOWN if self.operator[at] == NONE else self.trace.names[self.operator[at]]

    def shapes_at(self, at: int) -> str:
        """Dimensions of a call's tensors on one line; "" where not recorded."""
        shapes = int(self.shapes[at])
        text = "" if shapes == NONE else self.trace.shape_table[shapes].input_dims
        text = "".join(text.split()).replace(",", ", ")
        while text.endswith(", []]"):  # scalars at the end
            text = text.removesuffix(", []]") + "]"
        return text if len(text) <= MAX_SHAPES_CHARACTERS else text[: MAX_SHAPES_CHARACTERS - 3] + "..."

    def call_at(self, at: int) -> str:
        return f"{self.operator_at(at)} {self.shapes_at(at)}".rstrip()

    def example_at(self, at: int) -> KernelExample:
        launch = int(self.launch[at])
        return KernelExample(
            operator=None if self.operator[at] == NONE else self.operator_at(at),
            module=None if self.module[at] == NONE else _region_name(self.trace.names[self.module[at]]),
            shapes=self.shapes_at(at) or None,
            launch=_NO_LAUNCH if launch == NONE else self.trace.launches[launch],
        )

    def grouped(self, keys: list[IntColumn], key_at: Callable[[int], str], most: int = NUM_GROUPS_KEPT) -> KernelGroups:
        """Combinations summed by some of their columns; the largest groups with owned time."""
        which, first = combinations(tuple(keys))
        sums = np.zeros((len(first), Columns.SIZE))
        np.add.at(sums, which, self.sums)
        largest = np.zeros(len(first), np.intp)
        by_time = np.argsort(self.sums[:, SumColumn.OWNED_NS], kind="stable")
        largest[which[by_time]] = by_time  # the last assignment wins: the one with most time
        kept = np.argsort(-sums[:, SumColumn.OWNED_NS], kind="stable")[:most]
        kept = kept[sums[kept, SumColumn.OWNED_NS] > 0]
        return KernelGroups(
            keys=[key_at(at) for at in first[kept].tolist()],
            sums=sums[kept],
            examples=[self.example_at(at) for at in largest[kept].tolist()],
        )

    def by_module(self) -> KernelGroups:
        """Groups of modules by class."""
        kinds: dict[str, int] = {}
        number = {NONE: NONE}
        for module in distinct(self.module[self.module != NONE]).tolist():
            number[module] = kinds.setdefault(_region_kind(self.trace.names[module]), len(kinds))
        kind = np.array([number[module] for module in self.module.tolist()], np.int64)
        names = [*kinds, NOT_KNOWN]  # NONE picks the last
        return self.grouped([kind], lambda at: names[kind[at]])


def rank_kernels(
    trace: TraceColumns, activities: Activities, limits: KernelLimits, owned_ns: IntColumn, window: Window
) -> RankKernels:
    """Sum up one rank's kernels.

    Args:
        limits: of the compute kernels among the activities, in order.
        owned_ns: the time in the window attributed to each.
    """
    kernels = activities.of(Work.COMPUTE)
    device = _device(trace, activities, kernels)
    fit = fit_launches([*trace.launches, _NO_LAUNCH], device)
    flags = flag_kernels(trace, activities, kernels, limits, fit, device)
    combined = _combine(trace, activities.row[kernels], limits, owned_ns, flags, fit)
    inside = (activities.end_ns > window.start_ns) & (activities.start_ns < window.end_ns)
    by_name = combined.grouped([combined.name], lambda at: trace.names[combined.name[at]], NUM_NAMES_KEPT)
    return RankKernels(
        by_name=by_name,
        by_operator=combined.grouped([combined.operator], combined.operator_at),
        by_module=combined.by_module(),
        by_call=combined.grouped([combined.operator, combined.shapes], combined.call_at),
        total=combined.sums.sum(axis=0),
        copies=copy_sums(trace, activities.row[inside & (activities.work != Work.COMPUTE)], device),
        steps_by_name=_step_times(trace, activities, kernels, owned_ns, window, by_name.keys),
    )


def no_kernels() -> RankKernels:
    """Kernels of a rank without a device: none."""
    none = KernelGroups([], np.zeros((0, Columns.SIZE)), [])
    return RankKernels(none, none, none, none, np.zeros(Columns.SIZE), [], KernelStepTimes([], np.zeros((0, 0))))


def _step_times(
    trace: TraceColumns,
    activities: Activities,
    kernels: npt.NDArray[np.intp],
    owned_ns: IntColumn,
    window: Window,
    names: list[str],
) -> KernelStepTimes:
    """Owned time by name and whole step; the last step ends with the trace, so it is not whole."""
    num_steps = len(window.boundary_ns) - 1
    place_of_name = {name: place for place, name in enumerate(names)}
    place = np.array([place_of_name.get(name, NONE) for name in trace.names] or [NONE])[
        trace.name[activities.row[kernels]]
    ]
    step = np.searchsorted(window.boundary_ns, activities.start_ns[kernels], side="right") - 1
    step = np.maximum(step, 0)  # a kernel that runs when the window begins owns its time in the first step
    here = (place != NONE) & (step < num_steps)
    flat = np.bincount(
        place[here] * max(num_steps, 1) + step[here], weights=owned_ns[here], minlength=len(names) * num_steps
    )
    return KernelStepTimes(window.index[:num_steps].tolist(), flat.astype(np.float64).reshape(len(names), num_steps))


def _device(trace: TraceColumns, activities: Activities, kernels: npt.NDArray[np.intp]) -> TraceDevice | None:
    """The device on which the kernels ran, else the first that the trace lists."""
    devices = {device.index: device for device in trace.header.devices}
    if not len(kernels) or not devices:
        return next(iter(devices.values()), None)
    lane = int(np.bincount(trace.lane[activities.row[kernels]]).argmax())
    return devices.get(trace.lanes[lane].process, next(iter(devices.values())))


def _combine(
    trace: TraceColumns,
    rows: IntColumn,
    limits: KernelLimits,
    owned_ns: IntColumn,
    flags: Mapping[Flag, Mask],
    fit: LaunchFit,
) -> _Combinations:
    operator = limits.operator
    region = _launching_regions(trace, limits.launch)
    columns = (
        trace.name[rows],
        np.where(operator != NONE, trace.name[operator], NONE),
        np.where(region != NONE, trace.name[region], NONE),
        np.where(operator != NONE, trace.shapes[operator], NONE),
        trace.launch[rows],
    )
    which, first = combinations(columns)
    name, operator, module, shapes, launch = (column[first] for column in columns)
    sums = _sums(which, len(first), limits, owned_ns, flags)
    unknown = trace.named(rows[first], is_unknown)
    sums[unknown, SumColumn.UNKNOWN_NS] = sums[unknown, SumColumn.OWNED_NS]
    sums[unknown, SumColumn.UNKNOWN_COUNT] = sums[unknown, SumColumn.COUNT]
    _add_fit(sums, fit, launch)
    return _Combinations(trace, name, operator, module, shapes, launch, sums)


def _sums(which: IntColumn, count: int, limits: KernelLimits, owned_ns: IntColumn, flags: Mapping[Flag, Mask]) -> Sums:
    """Sums by combination of what differs from kernel to kernel."""

    def total(weights: npt.NDArray[Any]) -> Sums:
        return np.bincount(which, weights=weights, minlength=count).astype(np.float64)

    def spread(codes: npt.NDArray[np.uint8], size: int) -> Sums:
        flat = np.bincount(which * size + codes, weights=owned_ns, minlength=count * size)
        return flat.astype(np.float64).reshape(count, size)

    sums = np.zeros((count, Columns.SIZE))
    owns = owned_ns > 0
    floor = np.fmax(limits.floor_ns_flops, limits.floor_ns_bytes)
    modelled = ~np.isnan(floor)
    sums[:, SumColumn.COUNT] = total(owns)
    sums[:, SumColumn.TINY_COUNT] = total(owns & flags[Flag.TINY_KERNELS])
    sums[:, SumColumn.OWNED_NS] = total(owned_ns)
    sums[:, SumColumn.DURATION_NS] = total(limits.duration_ns * owns)
    sums[:, SumColumn.MODELLED_NS] = total(limits.duration_ns * (owns & modelled))
    sums[:, SumColumn.FLOOR_NS] = total(np.where(owns & modelled, floor, 0.0))
    is_latency_bound = limits.category == CATEGORY_CODE[TimeCategory.LATENCY_BOUND]
    sums[:, SumColumn.SHORT_NS] = total(owned_ns * (is_latency_bound & (limits.duration_ns < SHORT_KERNEL_NS)))
    for flag, mask in flags.items():
        sums[:, Columns.FLAGS.start + flag] = total(owned_ns * mask)
    sums[:, Columns.CATEGORIES] = spread(limits.category, len(CATEGORY_ORDER))
    sums[:, Columns.DECIDED] = spread(limits.decided_by, Columns.DECIDED.stop - Columns.DECIDED.start)
    return sums


def _add_fit(sums: Sums, fit: LaunchFit, launch: IntColumn) -> None:
    """Add the occupancy that all kernels of a combination share, weighted with their owned time."""
    owned = sums[:, SumColumn.OWNED_NS]
    occupancy, achieved = fit.occupancy[launch], fit.achieved[launch]
    known = ~np.isnan(occupancy) & ~np.isnan(achieved)
    sums[:, SumColumn.FITTED_NS] = np.where(known, owned, 0.0)
    sums[:, SumColumn.OCCUPIED_NS] = np.where(known, owned * occupancy, 0.0)
    sums[:, SumColumn.ACHIEVED_NS] = np.where(known, owned * achieved, 0.0)
    sums[np.arange(len(sums)), Columns.LIMITERS.start + fit.limiter[launch]] = owned


_PCIE_GENERATION = {6: 3, 7: 3, 8: 4, 9: 5, 10: 5}
"""PCIe generation of data-centre GPUs by major compute capability: Pascal and Volta, Ampere, Hopper and Blackwell (data
sheets). NVLink-C2C hosts are faster."""


@dataclass(frozen=True, slots=True)
class CopySums:
    """All memory copies of one kind ("HtoD (Pageable -> Device)") in one rank's window.

    `num_bytes` and `sized_ns` cover the copies with a recorded size; `link_bytes_per_second` is the host link's, None
    for copies that do not use it and where it is unknown.
    """

    kind: str
    count: int
    duration_ns: int
    num_bytes: int
    sized_ns: int
    link_bytes_per_second: float | None

    def __add__(self, other: CopySums) -> CopySums:
        return replace(
            self,
            count=self.count + other.count,
            duration_ns=self.duration_ns + other.duration_ns,
            num_bytes=self.num_bytes + other.num_bytes,
            sized_ns=self.sized_ns + other.sized_ns,
        )


def takes_host_link(kind: str) -> bool:
    """Table of kernels and copies: whether copies of this kind go between host and device."""
    return kind.startswith(("HtoD", "DtoH"))


def is_pageable(kind: str) -> bool:
    """Whether memory copies of this kind have one end in host memory that is not pinned."""
    return takes_host_link(kind) and "Pageable" in kind


def copy_sums(trace: TraceColumns, rows: IntColumn, device: TraceDevice | None) -> list[CopySums]:
    """Sum the memory copies among some device rows by their kind."""
    rows = rows[trace.category[rows] == Category.MEMCPY]
    names, which = np.unique(trace.name[rows], return_inverse=True)
    duration = trace.end_ns[rows] - trace.start_ns[rows]
    size = trace.num_bytes[rows]
    link = None
    if device is not None and device.compute_capability is not None and has_nvidia_limits(device):
        generation = _PCIE_GENERATION.get(device.compute_capability[0], 0)
        link = PCIE_BYTES_PER_SECOND.get(generation)
    sums = []
    for place, name in enumerate(names.tolist()):
        mine = which == place
        sized = mine & (size != NONE)
        kind = trace.names[name].removeprefix("Memcpy ")
        sums.append(
            CopySums(
                kind=kind,
                count=int(np.count_nonzero(mine)),
                duration_ns=int(duration[mine].sum()),
                num_bytes=int(size[sized].sum()),
                sized_ns=int(duration[sized].sum()),
                link_bytes_per_second=link if takes_host_link(kind) else None,
            )
        )
    return sums
