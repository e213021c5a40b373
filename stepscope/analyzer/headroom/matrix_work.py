"""Matrix work of a step: products and convolutions with their sizes, as the models of headroom need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from stepscope.analyzer.headroom.rates import Convolution, KernelRates
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import StepModel
from stepscope.analyzer.roofline.convolution_cost import FORWARDS, WHOLE_BACKWARDS, is_transposed
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.matmul_cost import AttentionSizes, attention_sizes
from stepscope.analyzer.roofline.operator_call import Dims, OperatorCall
from stepscope.core.vocabulary import Change
from stepscope.trace.columns import IntColumn

_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
}
"""Numbers of the arguments that are multiplied."""


@dataclass(frozen=True, slots=True)
class Product:
    """A call that multiplies matrices: `batch` times [m, k] x [k, n].

    Attributes:
        kernels: positions of its kernels in the step.
        dtype: element type after the changes so far.
        layout: nt in a forward pass, nn for the gradient of an input, tn for that of a weight.
    """

    kernels: IntColumn
    dtype: str
    layout: str
    batch: int
    m: int
    n: int
    k: int

    def time_ns(self, rates: KernelRates, dtype: str) -> float | None:
        """Its time in another element type, of sizes that fit the tensor cores."""
        return rates.product_ns(dtype, self.layout, self.m, self.n, self.k, self.batch)


@dataclass(frozen=True, slots=True)
class Filtering:
    """A call of a convolution or of its gradients.

    Attributes:
        kernels: positions of its kernels in the step, those that change the layout too.
        passes: forward; input, weight or both for gradients.
        is_of_images: of two dimensions; those of a sequence have one row.
    """

    kernels: IntColumn
    dtype: str
    passes: tuple[str, ...]
    sizes: Convolution
    is_of_images: bool

    def time_ns(self, rates: KernelRates, dtype: str, layout: str) -> float | None:
        """Its time in another element type and layout (nchw, nhwc)."""
        times = [rates.convolution_ns(dtype, layout, one, self.sizes) for one in self.passes]
        known = [time for time in times if time is not None]
        return sum(known) if len(known) == len(times) else None

    def converted_ns(self, rates: KernelRates, dtype: str, now_ns: float) -> float | None:
        """Its time in another element type, by the ratio of measured times where its own is on tensor cores too."""
        time_ns, own_ns = (self.time_ns(rates, one, "nchw") for one in (dtype, self.dtype))
        if self.dtype == "float32" or time_ns is None or own_ns is None:
            return time_ns
        return now_ns * time_ns / own_ns


def present_dtype(step: StepModel, recorded: str) -> str:
    """Element type in which matrices of a recorded type are multiplied after the changes so far."""
    if recorded in {"float32", "tfloat32"} and Change.AUTOCAST in step.done:
        return "bfloat16"
    return recorded


def products(step: StepModel) -> Iterator[Product]:
    """The matrix products of a step that still run."""
    kernels = step.kernels
    if kernels is None:
        return
    here = step.is_there
    found = [(places, sizes) for places in kernels.works() if (sizes := _product_sizes(kernels, places)) is not None]
    tokens = {sizes[1] for places, sizes in found if kernels.by_main[places[0]]}
    for places, (batch, m, n, k) in found:
        main = _main(kernels, places, Family.MATMUL)
        if main is None or not here[main]:
            continue
        dtype = present_dtype(step, kernels.dtype_of(main))
        if dtype == "float32" and Change.TF32_PRODUCTS in step.done:
            dtype = "tfloat32"
        layout = "nt" if kernels.by_main[main] else ("tn" if k in tokens and m not in tokens else "nn")
        yield Product(places, dtype, layout, batch, m, n, k)


def convolutions(step: StepModel) -> Iterator[Filtering]:
    """The convolutions of a step that still run, forward and backward."""
    kernels = step.kernels
    if kernels is None:
        return
    here = step.is_there
    for places in kernels.works():
        name, call = kernels.operator_of(int(places[0])), kernels.call_of(int(places[0]))
        if call is None or not here[places].any():
            continue
        found = _filtering(name, call)
        main = _main(kernels, places, Family.CONVOLUTION, Family.MATMUL)
        if found is None or main is None:
            continue
        dtype = present_dtype(step, kernels.dtype_of(main))
        if dtype == "float32" and Change.TF32_CONVOLUTIONS in step.done:
            dtype = "tfloat32"
        is_of_images = all(len(dims) != 4 or min(dims[2:]) > 1 for dims in call.dims[:2] if dims and dims[0])
        yield Filtering(places, dtype, *found, is_of_images)


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """A call of a fused attention kernel, forward or backward."""

    kernels: IntColumn
    dtype: str
    sizes: AttentionSizes

    def ratio(self, rates: KernelRates, dtype: str) -> float | None:
        """Ratio of its time in another element type to that in its own."""
        times = []
        for one in (dtype, self.dtype):
            both = rates.attention_ns(
                one,
                "causal" if self.sizes.is_causal else "none",
                batch_heads=self.sizes.batch_heads,
                queries=self.sizes.queries,
                keys=self.sizes.keys,
                head=self.sizes.head,
            )
            if both is None:
                return None
            times.append(both[1 if self.sizes.is_backward else 0])
        return times[0] / times[1]


def fused_attentions(step: StepModel) -> Iterator[FusedAttention]:
    """The fused attentions of a step as it was recorded."""
    kernels = step.kernels
    if kernels is None:
        return
    here = step.is_there
    for places in kernels.works():
        main = _main(kernels, places, Family.ATTENTION)
        call = kernels.call_of(int(places[0]))
        if main is None or call is None or not here[main]:
            continue
        sizes = attention_sizes(kernels.operator_of(main), call)
        if sizes is not None:
            yield FusedAttention(places, present_dtype(step, kernels.dtype_of(main)), sizes)


def _main(kernels: StepKernels, places: IntColumn, *families: Family) -> int | None:
    """The longest kernel of a call that does its arithmetic."""
    own = places[np.isin(kernels.family[places], families) & (kernels.dtype[places] > 0)]
    return int(own[np.argmax(kernels.duration_ns[own])]) if len(own) else None


def _product_sizes(kernels: StepKernels, places: IntColumn) -> tuple[int, int, int, int] | None:
    at = int(places[0])
    arguments, call = _PRODUCTS.get(kernels.operator_of(at)), kernels.call_of(at)
    left, right = (None, None) if call is None or arguments is None else map(call.tensor, arguments)
    if not left or not right or len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return None
    return prod(left[:-2]), left[-2], right[-1], left[-1]


def _filtering(name: str, call: OperatorCall) -> tuple[tuple[str, ...], Convolution] | None:
    forward, backward = FORWARDS.get(name), WHOLE_BACKWARDS.get(name)
    if forward is not None:
        source, weight, stride = call.tensor(0), call.tensor(1), call.integers(forward.stride)
        passes: tuple[str, ...] = ("forward",)
        transposed = is_transposed(call, forward.transposed)
    elif backward is not None:
        gradient, source, weight = (call.tensor(at) for at in (backward.gradient, backward.input, backward.weight))
        wanted = call.flags(backward.mask) or (True, True, False)
        passes = tuple(one for one, is_wanted in zip(("input", "weight"), wanted, strict=False) if is_wanted)
        transposed, stride = is_transposed(call, backward.transposed), None
        if gradient and source and len(gradient) == len(source) == 4 and min(gradient[2], source[2]) > 0:
            stride = (round(max(source[2] / gradient[2], gradient[2] / source[2])),) * 2
    else:
        return None
    if transposed is None or not passes:
        return None
    sizes = _convolution(source, weight, stride, transposed=transposed)
    if transposed:
        passes = tuple(_TRANSPOSED_PASS[one] for one in passes)
    return None if sizes is None else (passes, sizes)


_TRANSPOSED_PASS = {"forward": "input", "input": "forward", "weight": "weight"}
"""A transposed convolution is the gradient of a plain one."""


def _convolution(
    source: Dims | None, weight: Dims | None, stride: Dims | None, *, transposed: bool
) -> Convolution | None:
    """Sizes of the plain convolution that a call is or is the gradient of."""
    if not source or not weight or not stride or len(source) != 4 or len(weight) != 4 or not weight[1]:
        return None
    size = (source[2] * source[3]) ** 0.5
    if transposed:
        window = (weight[2] * weight[3]) ** 0.5
        groups = max(source[1] // weight[0], 1)
        return Convolution(source[0], weight[1] * groups, size * stride[0], weight[0], window, stride[0], groups)
    return Convolution(
        batch=source[0],
        channels=source[1],
        size=size,
        filters=weight[0],
        window=(weight[2] * weight[3]) ** 0.5,
        stride=stride[0],
        groups=max(source[1] // weight[1], 1),
    )
