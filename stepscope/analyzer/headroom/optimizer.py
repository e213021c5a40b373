"""Headroom of the optimizer: its update in one pass over parameters, gradients and states."""

from __future__ import annotations

import re
from collections import defaultdict
from math import prod

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel
from stepscope.analyzer.roofline.element_types import element_bytes_of
from stepscope.analyzer.roofline.list_passes import bytes_an_element
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Change

_FUSED = re.compile(r"^aten::_fused_|fused", re.IGNORECASE)
_OF_ADAM = re.compile(r"lerp|addcdiv|sqrt")


def fused_optimizer(step: StepModel, _facts: JobFacts) -> Changed | None:
    """The step with a fused optimizer, where it is Adam's or SGD's kind and makes several passes now."""
    kernels, rates = step.kernels, step.rates
    if kernels is None or rates is None:
        return None
    own = np.flatnonzero(kernels.by_optimizer & step.is_there)
    names = {kernels.operator_of(at) for at in own.tolist()}
    if not len(own) or any(map(_FUSED.search, names)):
        return None
    elements, width = _elements(kernels, own.tolist())
    name = "AdamW" if any(map(_OF_ADAM.search, names)) else "SGD"
    time_ns = rates.optimizer_ns(name, "fused", "float32" if width == 4 else "bfloat16", elements)
    now_ns = float(step.most_ns[own].sum())
    if time_ns is None or time_ns >= now_ns:
        return None
    new = dict.fromkeys(own.tolist(), NO_TIME) | {int(own[0]): Span(time_ns, time_ns)}
    why = f"{now_ns / 1e6:,.1f} ms per step in {counted(len(own), 'kernel')} of the optimizer"
    return Changed(step.after(Change.FUSED_OPTIMIZER, new), why, rates.error)


def _elements(kernels: StepKernels, places: list[int]) -> tuple[float, int]:
    """Elements of all parameters, and their width: what an operator that passes over all of them once works on."""
    of_operator: dict[str, float] = defaultdict(float)
    widths: dict[int, float] = defaultdict(float)
    for at in places:
        call, name = kernels.call_of(at), kernels.names[int(kernels.name[at])]
        per_element = bytes_an_element(name)
        if per_element is not None and not np.isnan(kernels.num_bytes[at]):
            elements = float(kernels.num_bytes[at]) / per_element
        elif call is not None and call.tensor(0):
            elements = float(prod(call.tensor(0) or ()))
        else:
            continue
        of_operator[kernels.operator_of(at)] += elements
        widths[element_bytes_of(name) or 4] += elements
    if not of_operator:
        return 0.0, 4
    most = max(of_operator.values())
    return min(total for total in of_operator.values() if total >= most / 3), max(widths, key=lambda one: widths[one])
