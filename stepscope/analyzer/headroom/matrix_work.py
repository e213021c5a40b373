"""Matrix work of a step: products and convolutions with their sizes, as the models of headroom need them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TypeVar

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


_Work = TypeVar("_Work", Product, Filtering)


def present_dtype(step: StepModel, recorded: str) -> str:
    """Element type in which matrices of a recorded type are multiplied after the changes so far."""
    if recorded in {"float32", "tfloat32"} and Change.AUTOCAST in step.done:
        return "bfloat16"
    return recorded


def products(step: StepModel) -> Iterator[Product]:
    """The matrix products of a step that still run."""
    return _present(step, [] if step.kernels is None else _recorded_products(step.kernels), Change.TF32_PRODUCTS)


def convolutions(step: StepModel) -> Iterator[Filtering]:
    """The convolutions of a step that still run, forward and backward."""
    recorded = [] if step.kernels is None else _recorded_convolutions(step.kernels)
    return _present(step, recorded, Change.TF32_CONVOLUTIONS)


def _present(step: StepModel, recorded: Iterable[tuple[int, _Work]], to_tf32: Change) -> Iterator[_Work]:
    """Those that still run, each with its present element type."""
    here = step.is_there
    for main, one in recorded:
        if here[main]:
            dtype = present_dtype(step, one.dtype)
            if dtype == "float32" and to_tf32 in step.done:
                dtype = "tfloat32"
            yield one if dtype == one.dtype else replace(one, dtype=dtype)


@lru_cache(maxsize=2)
def _recorded_products(kernels: StepKernels) -> list[tuple[int, Product]]:
    """The products of a step as recorded, each with the position of its main kernel."""
    mains = kernels.main_kernels(Family.MATMUL)
    found = [(places, main, sizes) for places, main in mains if (sizes := _product_sizes(kernels, main)) is not None]
    tokens = {sizes[1] for _, main, sizes in found if kernels.by_main[main]}
    products = []
    for places, main, (batch, m, n, k) in found:
        layout = "nt" if kernels.by_main[main] else ("tn" if k in tokens and m not in tokens else "nn")
        products.append((main, Product(places, kernels.dtype_of(main), layout, batch, m, n, k)))
    return products


@lru_cache(maxsize=2)
def _recorded_convolutions(kernels: StepKernels) -> list[tuple[int, Filtering]]:
    found = []
    for places, main in kernels.main_kernels(Family.CONVOLUTION, Family.MATMUL):
        name, call = kernels.operator_of(main), kernels.call_of(main)
        sizes = None if call is None else _filtering(name, call)
        if call is not None and sizes is not None:
            is_of_images = all(len(dims) != 4 or min(dims[2:]) > 1 for dims in call.dims[:2] if dims and dims[0])
            found.append((main, Filtering(places, kernels.dtype_of(main), *sizes, is_of_images)))
    return found


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
    """The fused attentions of a step."""
    here, kernels = step.is_there, step.kernels
    for places, main in [] if kernels is None else kernels.main_kernels(Family.ATTENTION):
        call = None if kernels is None or not here[main] else kernels.call_of(main)
        sizes = None if kernels is None or call is None else attention_sizes(kernels.operator_of(main), call)
        if kernels is not None and sizes is not None:
            yield FusedAttention(places, present_dtype(step, kernels.dtype_of(main)), sizes)


def _product_sizes(kernels: StepKernels, at: int) -> tuple[int, int, int, int] | None:
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
    if not source or not weight or not stride or len(source) != 4 or len(weight) != 4 or not all(weight[:2]):
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
