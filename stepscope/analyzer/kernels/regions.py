"""In which module, or annotated region, was each kernel launched?

Frames of modules are there when the profiler recorded stacks or modules; annotations are the user's own
(record_function), the optimizer's and FSDP's. Backward is launched from a thread of its own, mostly without either:
what is open on the training loop's thread, which waits for it, counts there.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_operator import innermost_on_thread, innermost_open
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns

_MODULE_FRAME = "nn.Module: "
_NO_REGION = re.compile(r"^(ProfilerStep#|nccl:|gloo:|c10d::|enumerate\(DataLoader\)#|\[pl]\[)|##")
"""Annotations of the whole step, of communication and of loading say nothing of a kernel's place in the model."""
_INSTANCE = re.compile(r"_\d+$")


def launching_regions(trace: TraceColumns, launch: IntColumn) -> npt.NDArray[np.intp]:
    """For each launch (a row, or NONE), the row of the innermost module or annotation open at it, or NONE."""
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


def region_name(name: str) -> str:
    """A module's or annotation's name as people know it."""
    return name.removeprefix(_MODULE_FRAME)


def region_kind(name: str) -> str:
    """The same without the number by which torch tells modules of one class apart: layers are added up."""
    if not name.startswith(_MODULE_FRAME):
        return name
    return _INSTANCE.sub("", region_name(name))
