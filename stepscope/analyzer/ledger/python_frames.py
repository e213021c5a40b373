"""Python frames of a rank's training thread: in which function host time was spent.

Recorded with `with_stack=True`. A frame's line is that of its function, or where a function was that had begun before
the recording.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, covered_time, subtract, time_of
from stepscope.core.errors import printable
from stepscope.trace.columns import Category, TraceColumns
from stepscope.trace.rows import on_lanes

_FRAME = re.compile(
    r"^(?P<file>.*\.py)\((?P<line>\d+)\): (?P<function>(?!<(listcomp|setcomp|dictcomp|genexpr|lambda)>).*)$", re.DOTALL
)
"""Comprehensions and lambdas are part of the function around them."""
_INSTALLED = re.compile(r"(^|/)(site|dist)-packages/")
_STANDARD = re.compile(r"^/.*/lib/python3[^/]*/")
_FRAMEWORKS = frozenset(
    {
        "accelerate",
        "apex",
        "datasets",
        "deepspeed",
        "lightning",
        "lightning_fabric",
        "megatron",
        "numpy",
        "pandas",
        "pyarrow",
        "pytorch_lightning",
        "sglang",
        "stepscope",
        "tokenizers",
        "torch",
        "torch_geometric",
        "torchao",
        "torchdata",
        "torchtitan",
        "torchvision",
        "tqdm",
        "transformers",
        "triton",
        "vllm",
        "webdataset",
    }
)
"""Packages that train for the user; the profiler cuts off where they are installed."""

_OWN, _FRAMEWORK, _OTHER = range(3)
_MAX_FUNCTIONS = 50


def time_by_function(trace: TraceColumns, lanes: Sequence[int], time: Intervals, first_step_ns: int) -> dict[str, int]:
    """Nanoseconds of these times by function: "train.py:12 prepare_batch"; empty without recorded frames.

    The functions are those of the thread with most frames, as autograd's thread has none.
    The innermost of the user's own functions counts that was called since the first step began; else the innermost of a
    framework, else the function around the steps.
    """
    rows = on_lanes(trace, trace.rows_named(_FRAME.match, Category.PYTHON_FUNCTION), lanes)
    if not len(rows) or not len(time):
        return {}
    rows = rows[trace.lane[rows] == np.bincount(trace.lane[rows]).argmax()]
    kind = trace.by_name(rows, _kind, np.int8)
    is_called = trace.start_ns[rows] >= first_step_ns
    found = Counter[str]()
    for chosen in (
        (kind == _OWN) & is_called,
        (kind == _FRAMEWORK) & is_called,
        (kind == _OWN) & ~is_called,
        np.ones(len(rows), np.bool_),
    ):
        own = rows[chosen]
        by_name = np.bincount(trace.name[own], weights=_own_time(trace, own, time))
        for number in np.flatnonzero(by_name).tolist():
            found[_words(trace.names[number])] += round(by_name[number])
        time = subtract(time, time_of(trace, own))
    return dict(found.most_common(_MAX_FUNCTIONS))


def _own_time(trace: TraceColumns, rows: npt.NDArray[np.intp], time: Intervals) -> npt.NDArray[np.int64]:
    """Of each frame the time in it and in no frame inside it."""
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    inside = covered_time(start, end, time).astype(np.int64)
    own = inside.copy()
    order = np.lexsort((-end, start))
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start[order], side="right")
    for level in range(1, int(depth.max(initial=0)) + 1):
        outer, inner = order[depth == level - 1], order[depth == level]
        if len(outer):
            parent = outer[np.searchsorted(start[outer], start[inner], side="right") - 1]
            np.subtract.at(own, parent, inside[inner])
    return np.maximum(own, 0)


def _kind(name: str) -> int:
    file = _FRAME.sub(r"\g<file>", name).replace("\\", "/")
    package = file.partition("/")[0].removesuffix(".py")
    if package in _FRAMEWORKS or _INSTALLED.search(file):
        return _FRAMEWORK
    return _OTHER if package in sys.stdlib_module_names or _STANDARD.match(file) else _OWN


def _words(name: str) -> str:
    """'train.py(12): step' -> 'train.py:12 step'."""
    return printable(_FRAME.sub(r"\g<file>:\g<line> \g<function>", name))
