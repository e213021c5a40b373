"""Headroom of the tensor cores: float32 products and convolutions as TF32, and everything in bf16 by autocast."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.matrix_work import Filtering, Product, convolutions, fused_attentions, products
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import Span, StepModel
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.core.vocabulary import Change
from stepscope.trace.columns import IntColumn

_CAST_BYTES = 6
"""To read an element of float32 and write it in 16 bits."""
_FLOAT32 = ("float32", "tfloat32")


def tf32_products(step: StepModel, facts: JobFacts) -> Changed | None:
    """Matrix products of float32 on the tensor cores."""
    if step.rates is None or not _may_use_tf32(facts):
        return None
    new: dict[int, Span] = {}
    now_ns = 0.0
    for product in products(step):
        if product.dtype == "float32":
            now_ns += float(step.most_ns[product.kernels].sum())
            _replace(new, step, product.kernels, product.time_ns(step.rates, "tfloat32"))
    if not new:
        return None
    _convert_attention(new, step, "tfloat32", ("float32",))
    why = f"{now_ns / 1e6:,.1f} ms per step in float32 matrix products off the tensor cores"
    return Changed(step.after(Change.TF32_PRODUCTS, new), why, step.rates.error)


def tf32_convolutions(step: StepModel, facts: JobFacts) -> Changed | None:
    """Convolutions of float32 on the tensor cores, which torch allows by default."""
    if step.rates is None or not _may_use_tf32(facts):
        return None
    new: dict[int, Span] = {}
    now_ns = 0.0
    for one in convolutions(step):
        if one.dtype == "float32":
            now_ns += float(step.most_ns[one.kernels].sum())
            _replace(new, step, one.kernels, one.time_ns(step.rates, "tfloat32", "nchw"))
    if not new or (facts.settings is not None and facts.settings.cudnn_allow_tf32):
        return None
    why = f"{now_ns / 1e6:,.1f} ms per step in float32 convolutions off the tensor cores"
    return Changed(step.after(Change.TF32_CONVOLUTIONS, new), why, step.rates.error)


def autocast(step: StepModel, facts: JobFacts) -> Changed | None:
    """All matrix work of float32 in bf16, and element-wise kernels between it on half as many bytes."""
    kernels, rates = step.kernels, step.rates
    if kernels is None or rates is None or not _may_use_tf32(facts):
        return None
    new: dict[int, Span] = {}
    wide: list[Product | Filtering] = [one for one in products(step) if one.dtype in _FLOAT32]
    wide += [one for one in convolutions(step) if one.dtype in _FLOAT32]
    now_ns = sum(float(step.most_ns[one.kernels].sum()) for one in wide)
    if now_ns < _MOSTLY * float(step.most_ns[kernels.is_of(*_MULTIPLIES) & step.is_there].sum()):
        return None
    weights = activations = 0.0
    for one in wide:
        if isinstance(one, Product):
            _replace(new, step, one.kernels, one.time_ns(rates, "bfloat16"))
            weights += one.n * one.k if one.layout == "nt" else (one.m * one.n if one.layout == "tn" else 0.0)
            activations += one.batch * one.m * one.k if one.layout == "nt" else 0.0
        else:
            now = float(step.most_ns[one.kernels].sum())
            _replace(new, step, one.kernels, one.converted_ns(rates, "bfloat16", now))
            weights += one.sizes.filters * one.sizes.channels / one.sizes.groups * one.sizes.window**2
    if not new:
        return None
    _convert_attention(new, step, "bfloat16", _FLOAT32)
    between = kernels.is_of(Family.POINTWISE, Family.COPY_LIKE) & ~kernels.by_optimizer & step.is_there
    for at in np.flatnonzero(between).tolist():
        if _is_of_float32(kernels, at):
            new.setdefault(at, Span(step.least_ns[at] / 2, step.most_ns[at]))
    cast_ns = rates.elementwise_ns(_CAST_BYTES * weights)
    added = Span(cast_ns / 1e6, (cast_ns + rates.elementwise_ns(_CAST_BYTES * activations)) / 1e6)
    why = f"{now_ns / 1e6:,.1f} ms per step in matrix work of float32"
    return Changed(step.after(Change.AUTOCAST, new, added=added), why, rates.error)


_MULTIPLIES = (Family.MATMUL, Family.CONVOLUTION)
_MOSTLY = 0.5
"""Least share of the time in matrix work that is of float32, for a job to be one that autocast would change."""


def _is_of_float32(kernels: StepKernels, at: int) -> bool:
    """Whether the largest tensor of a kernel's call is of float32."""
    call = kernels.call_of(at)
    sizes = (
        [] if call is None else [(prod(dims), kind) for dims, kind in zip(call.dims, call.types, strict=False) if dims]
    )
    return bool(sizes) and max(sizes)[1] == "float"


def _convert_attention(new: dict[int, Span], step: StepModel, dtype: str, present: Sequence[str]) -> None:
    """Give fused attentions the time of another element type."""
    for one in fused_attentions(step):
        ratio = None if step.rates is None or one.dtype not in present else one.ratio(step.rates, dtype)
        if ratio is not None and ratio < 1.0:
            new |= {int(at): Span(ratio * step.least_ns[at], ratio * step.most_ns[at]) for at in one.kernels}


def _may_use_tf32(facts: JobFacts) -> bool:
    """Whether the GPU has tensor cores for 32-bit operands; assumed where its capability is not recorded."""
    devices = [device for view in facts.views.values() for device in view.header.devices]
    return all(device.compute_capability is None or device.compute_capability >= (8, 0) for device in devices)


def _replace(new: dict[int, Span], step: StepModel, places: IntColumn | Sequence[int], time_ns: float | None) -> None:
    """Give a call's kernels a new total: its longest kernel takes it, the others go."""
    if time_ns is None:
        return
    longest = int(places[int(np.argmax(step.most_ns[places]))])
    if time_ns >= float(step.most_ns[places].sum()):
        return
    new |= {int(at): Span(0.0, 0.0) for at in places}
    new[longest] = Span(time_ns, time_ns)
