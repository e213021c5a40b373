"""Headroom of fusion: runs of element-wise kernels, norms and reductions as the few kernels that a compiler makes.

A fused run reads what comes from outside of it and writes what leaves it; what its kernels pass to each other never
reaches memory. Traces hold sizes of tensors, not their identity: a kernel that reads a tensor of the size that an
earlier one of its run wrote or read takes it to be that one, the last written first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.rates import KernelRates
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import OperatorCall
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Change
from stepscope.trace.columns import NONE

_FUSIBLE = (Family.POINTWISE, Family.COPY_LIKE, Family.NORMALIZATION, Family.REDUCTION, Family.SOFTMAX)
_REDUCES = re.compile(r"^aten::(sum|mean|amax|amin|norm|linalg_vector_norm|var|std|var_mean|logsumexp)$")
"""Reductions that a compiler fuses with what comes before; pooling and the like it does not."""
_NORMS_OVER_ROWS = re.compile(r"^aten::(native_layer_norm|_fused_rms_norm)(_backward)?$")
_DROPOUT = re.compile(r"^aten::(native_dropout|dropout|bernoulli_|native_dropout_backward)")
_GENERATED = "triton_"
_MIN_RUN = 2
_SMALL = 0.25
"""Tensors smaller than this share of a run's largest count for nothing: weights, statistics, positions."""
COLUMN_SHARE = 0.6
"""Bandwidth of a pass that reduces over columns (statistics of a batch, gradients of weights), relative to that of an
element-wise one."""
RANDOM_NS_AN_ELEMENT = 2.1e-3
"""What a generated kernel needs to draw a random number, in both passes; measured on an H200 (`block gelu_dropout`)."""
COMPILER_SHARE = (0.85, 1.0)
"""Share of the saving that a compiler reaches: it splits runs at graph breaks and recomputes what it does not keep."""
MOSTLY_GENERATED = 0.2
"""Share of element-wise time in generated kernels from which on a job counts as compiled."""


class _Tensor(NamedTuple):
    elements: int
    num_bytes: float


class _Pass(NamedTuple):
    """What a call reads and writes inside of a fused run.

    Attributes:
        writes: None of a reduction.
        columns: tensors that it reads in a kernel of its own, to reduce them over columns.
        lives_on: the result is needed after the run, whoever reads it in between: the sum of a residual connection.
        num_random: random numbers that it draws.
    """

    reads: list[_Tensor]
    writes: _Tensor | None
    columns: list[_Tensor]
    lives_on: bool = False
    num_random: int = 0


def fused_kernels(step: StepModel, facts: JobFacts) -> Changed | None:
    """The step with its runs of element-wise kernels, norms and reductions compiled, where they are not yet."""
    kernels, rates, settings = step.kernels, step.rates, facts.settings
    if kernels is None or rates is None or _is_compiled(kernels):
        return None
    if settings is not None and any(model.compiled for model in settings.models):
        return None
    new: dict[int, Span] = {}
    now_ns, num_kernels = 0.0, 0
    of_alike: dict[tuple[tuple[int, int, int, bool], ...], float | None] = {}  # layers repeat their runs
    for run in _runs(step, kernels):
        own_ns = float(step.most_ns[run].sum())
        if (key := _key(kernels, run)) not in of_alike:
            of_alike[key] = _fused_ns(kernels, run, rates)
        fused_ns = of_alike[key]
        if fused_ns is None or fused_ns >= own_ns:
            continue
        least, most = (own_ns - share * (own_ns - fused_ns) for share in reversed(COMPILER_SHARE))
        now_ns, num_kernels = now_ns + own_ns, num_kernels + len(run)
        new |= dict.fromkeys(run, NO_TIME) | {run[0]: Span(least, most)}
    if not new:
        return None
    where = f"{counted(num_kernels, 'kernel')} in runs of element-wise work, norms and reductions"
    why = f"{now_ns / 1e6:,.1f} ms per step in {where}"
    return Changed(step.after(Change.FUSED_KERNELS, new), why, rates.error)


def _is_compiled(kernels: StepKernels) -> bool:
    generated = np.array([name.startswith(_GENERATED) for name in kernels.names] or [False])[kernels.name]
    element_wise = generated | kernels.is_of(*_FUSIBLE)
    total = float(kernels.duration_ns[element_wise].sum())
    return float(kernels.duration_ns[generated].sum()) > MOSTLY_GENERATED * total


def _runs(step: StepModel, kernels: StepKernels) -> Iterator[list[int]]:
    """Kernels in a row on a stream that a compiler could fuse: of one pass, none of the optimizer."""
    fusible = kernels.is_of(*_FUSIBLE) & ~kernels.by_optimizer & step.is_there & (kernels.call != NONE)
    fusible &= ~step.replaced
    reduces = np.array([bool(_REDUCES.match(name)) for name in kernels.operators] or [False])[kernels.operator]
    fusible &= (kernels.family != Family.REDUCTION) | reduces | (kernels.operator == NONE)
    run: list[int] = []
    before: tuple[int, bool] | None = None
    for at in np.flatnonzero(step.is_there).tolist():
        place = int(kernels.stream[at]), bool(kernels.by_main[at])
        if run and (not fusible[at] or place != before):
            if len(run) >= _MIN_RUN:
                yield run
            run = []
        if fusible[at]:
            run.append(at)
        before = place
    if len(run) >= _MIN_RUN:
        yield run


def _key(kernels: StepKernels, run: list[int]) -> tuple[tuple[int, int, int, bool], ...]:
    """What decides the time of a run as generated kernels: of each kernel the operator with its arguments, the family,
    and whether it is the first of that call."""
    works = kernels.work[run].tolist()
    is_first = [work != before for work, before in zip(works, [NONE, *works[:-1]], strict=True)]
    columns = (kernels.operator[run].tolist(), kernels.call[run].tolist(), kernels.family[run].tolist(), is_first)
    return tuple(zip(*columns, strict=True))


def _fused_ns(kernels: StepKernels, run: list[int], rates: KernelRates) -> float | None:
    """Time of a run as generated kernels; None where its sizes are not recorded."""
    passes: list[_Pass] = []
    last_work = NONE
    for at in run:
        call, work = kernels.call_of(at), int(kernels.work[at])
        if call is None:
            return None
        if work != last_work:
            passes.append(_pass(kernels, at, call))
        last_work = work
    sizes = [tensor.elements for one in passes for tensor in (*one.reads, *([one.writes] if one.writes else []))]
    if not sizes:
        return None
    least = _SMALL * max(sizes)
    num_bytes = column_bytes = 0.0
    num_random, num_columns = 0, 0
    inside: dict[int, list[_Tensor]] = defaultdict(list)  # by size: written before, not read since
    seen: dict[int, int] = defaultdict(int)  # by size: written or read before
    for one in passes:
        taken: dict[int, int] = defaultdict(int)
        for tensor in one.reads:
            if tensor.elements < least:
                continue
            if inside[tensor.elements]:
                inside[tensor.elements].pop()
            elif taken[tensor.elements] >= seen[tensor.elements]:
                num_bytes += tensor.num_bytes
                seen[tensor.elements] += 1
            taken[tensor.elements] += 1
        columns = sum(tensor.num_bytes for tensor in one.columns if tensor.elements >= least)
        column_bytes, num_columns = column_bytes + columns, num_columns + bool(columns)
        num_random += one.num_random
        if one.writes is not None and one.writes.elements >= least:
            seen[one.writes.elements] += 1
            if one.lives_on:
                num_bytes += one.writes.num_bytes
            inside[one.writes.elements].append(one.writes)
    num_bytes += sum(tensor.num_bytes for left in inside.values() for tensor in left)
    plain_ns = max(rates.elementwise_ns(num_bytes), RANDOM_NS_AN_ELEMENT * num_random)
    column_ns = rates.elementwise_ns(column_bytes) / COLUMN_SHARE if column_bytes else 0.0
    return plain_ns + column_ns + num_columns * rates.elementwise_ns(0.0) + BETWEEN_KERNELS_NS


def _pass(kernels: StepKernels, at: int, call: OperatorCall) -> _Pass:
    """What the call of a kernel reads and writes."""
    name = kernels.operator_of(at)
    tensors = [
        _Tensor(prod(dims), float(call.num_bytes(argument) or 4 * prod(dims)))
        for argument, dims in enumerate(call.dims)
        if dims
    ]
    tensors += [_Tensor(prod(dims), 2.0 * prod(dims)) for some in call.lists if some for dims in some]
    if not tensors:
        return _Pass([], None, [])
    largest = max(tensors, key=lambda tensor: tensor.elements)
    if name == "aten::copy_":
        return _Pass(tensors[1:2] or tensors[:1], tensors[0], [])
    if name.endswith(("fill_", "zero_")):
        return _Pass([], tensors[0], [])
    if _REDUCES.match(name):
        return _Pass(tensors[:1], None, []) if _is_over_rows(call) else _Pass([], None, tensors[:1])
    if name == "aten::cat":
        total = sum(tensor.elements for tensor in tensors)
        return _Pass(tensors, _Tensor(total, sum(tensor.num_bytes for tensor in tensors)), [])
    if kernels.family[at] == Family.NORMALIZATION:
        is_plain = bool(_NORMS_OVER_ROWS.match(name)) and not name.endswith("_backward")
        columns = [] if is_plain else [tensor for tensor in tensors if tensor.elements == largest.elements]
        return _Pass(tensors, largest, columns)
    alike = [tensor for tensor in tensors if tensor.elements == largest.elements]
    is_sum = name in {"aten::add", "aten::add_"} and len(alike) > 1
    return _Pass(tensors, largest, [], is_sum, largest.elements if _DROPOUT.match(name) else 0)


def _is_over_rows(call: OperatorCall) -> bool:
    """Whether a reduction is over the last dimension, which is adjacent in memory."""
    dims, over = call.tensor(0), call.integers(1)
    return bool(dims) and over is not None and any(at in {-1, len(dims or ()) - 1} for at in over)
