"""Headroom of channels last: convolutions on tensor cores read images with the channels last in memory.

With the channels first each convolution changes the layout before and after; with the channels last those copies go,
and norms and pooling run on the other layout too.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.matrix_work import convolutions, present_dtype
from stepscope.analyzer.headroom.rates import KernelRates
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import Dims
from stepscope.core.vocabulary import Change
from stepscope.trace.columns import IntColumn

_CHANGES_LAYOUT = re.compile(r"nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|convert_layout", re.IGNORECASE)
_CHANNELS_LAST = re.compile(r"nhwc|ndhwc|channels_?last", re.IGNORECASE)
_IMAGE_PASSES = {
    "aten::native_batch_norm": ("batch_norm", "forward"),
    "aten::cudnn_batch_norm": ("batch_norm", "forward"),
    "aten::_native_batch_norm_legit": ("batch_norm", "forward"),
    "aten::native_batch_norm_backward": ("batch_norm", "backward"),
    "aten::cudnn_batch_norm_backward": ("batch_norm", "backward"),
    "aten::native_group_norm": ("group_norm", "forward"),
    "aten::native_group_norm_backward": ("group_norm", "backward"),
    "aten::max_pool2d_with_indices": ("max_pool", "forward"),
    "aten::max_pool2d_with_indices_backward": ("max_pool", "backward"),
}
_TYPES = {"c10::BFloat16": "bfloat16", "c10::Half": "bfloat16", "float": "float32"}


def channels_last(step: StepModel, _facts: JobFacts) -> Changed | None:
    """The step with all images in channels-last format, where convolutions change the layout now."""
    kernels, rates = step.kernels, step.rates
    if kernels is None or rates is None:
        return None
    new: dict[int, Span] = {}
    transposes_ns = last_flops = first_flops = 0.0
    for one in convolutions(step):
        if one.dtype not in {"bfloat16", "float16", "tfloat32"} or not one.is_of_images:
            continue
        now_ns = float(step.most_ns[one.kernels].sum())
        last, first = (one.time_ns(rates, one.dtype, layout) for layout in ("nhwc", "nchw"))
        if last is None or first is None:
            continue
        transposes = [int(at) for at in one.kernels if _CHANGES_LAYOUT.search(kernels.names[int(kernels.name[at])])]
        transposes_ns += float(step.most_ns[transposes].sum())
        has_last = any(map(_CHANNELS_LAST.search, (kernels.names[int(kernels.name[at])] for at in one.kernels)))
        if has_last and not transposes:
            last_flops += one.sizes.flops
        else:
            first_flops += one.sizes.flops
        after = Span(now_ns * last / first, now_ns * last / first)
        new |= dict.fromkeys(map(int, one.kernels), NO_TIME)
        new[int(one.kernels[np.argmax(step.most_ns[one.kernels])])] = after
    if last_flops >= first_flops or (not transposes_ns and Change.AUTOCAST not in step.done):
        return None
    for places in kernels.works():
        ratio = _ratio(step, kernels, places)
        if ratio is not None:
            new |= {int(at): Span(step.least_ns[at] * ratio, step.most_ns[at] * ratio) for at in places}
    new = _permuting(step, kernels) | new
    if not new:
        return None
    why = f"{transposes_ns / 1e6:,.1f} ms per step in kernels that only change the layout of images"
    return Changed(step.after(Change.CHANNELS_LAST, new), why, _ERROR_RATIO * rates.error)


def _ratio(step: StepModel, kernels: StepKernels, places: IntColumn) -> float | None:
    """Ratio of the times of a norm or pooling with the channels last and first."""
    at = int(places[0])
    found, call = _IMAGE_PASSES.get(kernels.operator_of(at)), kernels.call_of(at)
    if found is None or call is None or step.rates is None or not kernels.is_of(*_PASS_FAMILIES)[places].any():
        return None
    images = [
        (dims, _TYPES[kind]) for dims, kind in zip(call.dims, call.types, strict=False) if dims and kind in _TYPES
    ]
    images = [(dims, dtype) for dims, dtype in images if len(dims) == 4]
    if not images:
        return None
    dims, dtype = images[0]
    dtype = present_dtype(step, dtype)
    name, passes = found
    last, first = (step.rates.image_pass_ns(name, dtype, layout, passes, dims) for layout in ("nhwc", "nchw"))
    if last is None or first is None:
        return None
    if name in _CHANNELS_FIRST_ALONE:
        copied_ns = _copied_ns(step.rates, name, dtype, dims)
        return 1.0 + (2 if passes == "forward" else 1) * copied_ns / first
    return last / first


_CHANNELS_FIRST_ALONE = frozenset({"group_norm"})
"""Norms that torch computes with the channels first alone: it copies their inputs into that order, the next convolution
copies their results back, and so does the backward pass with gradients."""


def _copied_ns(rates: KernelRates, name: str, dtype: str, dims: Dims) -> float:
    """Time of the copy into channels first that a forward pass of such a norm makes."""
    last, first = (rates.image_pass_ns(name, dtype, layout, "forward", dims) for layout in ("nhwc", "nchw"))
    return max((last or 0.0) - (first or 0.0), 0.0)


def _permuting(step: StepModel, kernels: StepKernels) -> dict[int, Span]:
    """Kernels that read images in one order and write them in another: copies of one type go, others get faster.

    Norms over channels make such copies; what follows adds tensors of both orders.
    """
    new = {}
    for at in np.flatnonzero(kernels.is_of(Family.COPY_LIKE, Family.POINTWISE) & step.is_there).tolist():
        call = kernels.call_of(at)
        dims = None if call is None else call.tensor(0)
        if call is None or step.rates is None or not dims or len(dims) != 4 or min(dims[1:]) == 1:
            continue
        if np.isnan(kernels.num_bytes[at]):
            continue
        plain_ns = step.rates.elementwise_ns(float(kernels.num_bytes[at]))
        if plain_ns > _TRANSPOSING * step.most_ns[at]:  # as fast as a kernel that keeps the order
            continue
        is_copy = kernels.operator_of(at) == "aten::copy_" and call.types[0] == call.types[1]
        new[at] = NO_TIME if is_copy else Span(plain_ns, plain_ns)
    return new


_ERROR_RATIO = 1.5
"""Error of the ratio of both layouts' times, relative to that of other rates: cuDNN's choices jump with sizes."""
_TRANSPOSING = 0.6
"""Share of a kernel's time that one in order would take, below which it changes the order."""

_PASS_FAMILIES = (Family.NORMALIZATION, Family.REDUCTION)
