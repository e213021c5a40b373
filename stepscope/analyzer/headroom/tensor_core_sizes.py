"""Headroom of sizes: matrix products of sizes that no tensor-core kernel fits, such as a vocabulary of 50257."""

from __future__ import annotations

from collections import Counter

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.matrix_work import products
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel
from stepscope.core.vocabulary import Change

_FITTING = {"bfloat16": 8, "float16": 8, "tfloat32": 4}
"""Elements of 16 bytes, which tensor-core kernels load at once."""
_PADDED_TO = 64
_MIN_SIZE = 256
"""Smaller sizes would be padded by too much."""


def aligned_sizes(step: StepModel, _facts: JobFacts) -> Changed | None:
    """The step with odd sizes of products padded to a multiple of 64."""
    rates = step.rates
    if rates is None:
        return None
    new: dict[int, Span] = {}
    now_ns, odd = 0.0, Counter[int]()
    for product in products(step):
        fitting = _FITTING.get(product.dtype)
        sizes = (product.m, product.n, product.k)
        if fitting is None or product.batch > 1 or not any(size % fitting for size in sizes):
            continue  # sizes of batched products are lengths of sequences, which nobody pads for that
        if any(size % fitting and size < _MIN_SIZE for size in sizes):
            continue
        m, n, k = (-(-size // _PADDED_TO) * _PADDED_TO if size % fitting else size for size in sizes)
        time_ns = rates.product_ns(product.dtype, product.layout, m, n, k, product.batch)
        own_ns = float(step.most_ns[product.kernels].sum())
        if time_ns is None or time_ns >= own_ns:
            continue
        now_ns += own_ns
        odd.update(size for size in sizes if size % fitting)
        new |= dict.fromkeys(map(int, product.kernels), NO_TIME)
        new[int(product.kernels[int(step.most_ns[product.kernels].argmax())])] = Span(time_ns, time_ns)
    if not new:
        return None
    size = odd.most_common(1)[0][0]
    why = f"{now_ns / 1e6:,.1f} ms per step in products with a size of {size}, which no tensor-core kernel fits"
    return Changed(
        step.after(Change.ALIGNED_SIZES, new),
        why,
        rates.error,
        knob=f"{-(-size // _PADDED_TO) * _PADDED_TO} instead of {size}, a multiple of {_PADDED_TO}",
    )
