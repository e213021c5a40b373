"""Gradient reducer of one rank: what DDP and FSDP do beside their collectives, by torch's own spans."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, empty, time_of
from stepscope.trace.columns import Category, TraceColumns

_COPIES = frozenset(
    {
        "torch::distributed::reducer::mul_out",
        "torch::distributed::reducer::copy_",
        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
    }
)
_SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
_COLLECTIVE = "c10d::"
_UNIT = "FSDP::"
_FORWARD = "DistributedDataParallel.forward"
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_OPTIMIZER = "Optimizer.step#"

Instants = npt.NDArray[np.int64]


def _never() -> Instants:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class GradientReducer:
    """Host spans of the reducer, and the passes around them, on the rank's own clock.

    Attributes:
        copies: gradients copied into buckets and back.
        issues: collectives called.
        units: hooks of the units of fully_shard, with the copies into and out of their buffers.
        searches: the autograd graph walked for parameters without a gradient.
        forwards_ns: begins of forward passes of the wrapper.
        accumulated_ns: begins of the accumulations of a parameter's gradient.
        updates_ns: begins of the optimizer's steps.
    """

    copies: Intervals = field(default_factory=empty)
    issues: Intervals = field(default_factory=empty)
    units: Intervals = field(default_factory=empty)
    searches: Intervals = field(default_factory=empty)
    forwards_ns: Instants = field(default_factory=_never)
    accumulated_ns: Instants = field(default_factory=_never)
    updates_ns: Instants = field(default_factory=_never)


NO_REDUCER = GradientReducer()


def gradient_reducer(trace: TraceColumns) -> GradientReducer:
    """The spans of a rank's trace; all empty in a light capture, which has no operators."""
    kinds = Category.CPU_OP, Category.USER_ANNOTATION

    def begins(wanted: str) -> Instants:
        return np.sort(trace.start_ns[trace.rows_named(lambda name: name.startswith(wanted), *kinds)])

    return GradientReducer(
        copies=time_of(trace, trace.rows_named(_COPIES.__contains__, *kinds)),
        issues=time_of(trace, trace.rows_named(lambda name: name.startswith(_COLLECTIVE), *kinds)),
        units=time_of(trace, trace.rows_named(lambda name: name.startswith(_UNIT), *kinds)),
        searches=time_of(trace, trace.rows_named(lambda name: name == _SEARCH, *kinds)),
        forwards_ns=begins(_FORWARD),
        accumulated_ns=begins(_ACCUMULATES),
        updates_ns=begins(_OPTIMIZER),
    )
