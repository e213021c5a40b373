"""Rates of kernels: how long work takes that a change would run, by times measured on a real GPU.

Between measured sizes the share of the roofline is interpolated, not the time: it changes slowly. On a GPU without a
table of its own the shares are those of the measured one, at its own peaks, with a larger error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import log2, prod
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.roofline.operator_call import Dims
from stepscope.core.hardware import kernel_times_h200
from stepscope.core.hardware.gpu_catalogue import GpuModel, find_gpu

KNOWN_ERROR = 0.10
"""Relative error of a time on a measured GPU, between its measured sizes."""
SCALED_ERROR = 0.30
"""The same on another GPU, by the ratio of their peaks."""

_START_NS = 2_000.0
"""No kernel takes less."""
_ELEMENT_BYTES = {"float32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2}


class Convolution(NamedTuple):
    """Sizes of a convolution of square images."""

    batch: float
    channels: float
    size: float
    """height and width of the input"""
    filters: float
    window: float
    stride: float
    groups: float

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter sees few channels, which no tensor core helps."""
        return self.groups > 1 and self.channels / self.groups < 8

    @property
    def outputs(self) -> float:
        """Elements of a result's channel, all images together."""
        return self.batch * (self.size / max(self.stride, 1)) ** 2

    @property
    def flops(self) -> float:
        return 2.0 * self.outputs * self.filters * self.channels / max(self.groups, 1) * self.window**2

    def num_bytes(self, width: int) -> float:
        """Least bytes: image, weight and result."""
        weight = self.filters * self.channels / max(self.groups, 1) * self.window**2
        return width * (self.batch * self.channels * self.size**2 + weight + self.outputs * self.filters)


Key = tuple[str, ...]
"""Kind of work: its name, element type, layout, mask or pass."""


class _Reach(NamedTuple):
    """How a cloud is read between its points.

    Attributes:
        num_points: nearest points that count; None for the corners of a cell, two in each direction.
        steepness: exponent of the squared distance by which a point counts for less.
        scale: of each size, how much a doubling sets two cases apart; () for all alike.
    """

    num_points: int | None = None
    steepness: int = 1
    scale: tuple[float, ...] = ()


_REACHES: dict[Key, _Reach] = {
    ("convolution", "dense"): _Reach(2, 2, (1.0, 1.0, 3.0, 1.0)),
    ("convolution", "depthwise"): _Reach(1, 1, (1.0, 1.0, 2.0, 0.5)),
}
"""By kind of work, as leaves the smallest error where each measured case is predicted from the others. Libraries choose
another algorithm for another window, so that convolutions are read from the nearest cases alone."""


class _Cloud:
    """Measured cases of one kind of work: where each lies (logarithms of its sizes), and its share of the roofline."""

    def __init__(self, places: Sequence[Sequence[float]], shares: Sequence[float], reach: _Reach) -> None:
        self._places, self._logs = np.array(places), np.log2(shares)
        self._low, self._high = self._places.min(axis=0), self._places.max(axis=0)
        self._reach = reach
        self._known: dict[tuple[float, ...], float] = {}

    def share(self, *sizes: float) -> float:
        """Share of the roofline for these sizes: geometric mean of the nearest points, weighted by their closeness.

        Beyond the measured sizes it is that of the largest or smallest.
        """
        if sizes not in self._known:
            self._known[sizes] = self._read(sizes)
        return self._known[sizes]

    def _read(self, sizes: tuple[float, ...]) -> float:
        at = np.clip(np.log2(np.maximum(np.array(sizes, float), 1.0)), self._low, self._high)
        distance = (((self._places - at) * (self._reach.scale or 1.0)) ** 2).sum(axis=1)
        nearest = np.argsort(distance, kind="stable")[: self._reach.num_points or 2 ** len(at)]
        weight = 1.0 / (distance[nearest] + _SAME_PLACE) ** self._reach.steepness
        return float(2.0 ** ((weight * self._logs[nearest]).sum() / weight.sum()))


_SAME_PLACE = 1e-3
"""Squared distance, in doublings, at which two cases are the same."""


class KernelRates:
    """Times of work on one GPU, ns.

    Attributes:
        error: relative error of these times.
        num_sms: multiprocessors of the GPU.

    Args:
        gpu: the card that the job ran on.
    """

    def __init__(self, gpu: GpuModel) -> None:
        measured_on = find_gpu(kernel_times_h200.GPU)
        self._gpu = gpu
        self.num_sms = gpu.num_sms
        self.error = KNOWN_ERROR if measured_on is not None and gpu.name == measured_on.name else SCALED_ERROR

    def _roof_ns(self, flops: float, dtype: str, num_bytes: float) -> float:
        return max(_roof_ns(self._gpu, flops, dtype, num_bytes), _START_NS)

    def product_ns(self, dtype: str, layout: str, m: int, n: int, k: int, batch: int = 1) -> float | None:
        """Time of a matrix product [m, k] x [k, n] of aligned sizes.

        Args:
            layout: nt, nn or tn: which operand is stored transposed.
            batch: number of such products; they fill the GPU as one with more rows does.
        """
        cloud = _cloud("product", dtype, layout)
        if cloud is None:
            return None
        work = _product_work(dtype, batch * m, n, k) if batch == 1 else _batch_work(dtype, batch, m, n, k)
        return self._roof_ns(work.flops, dtype, work.num_bytes) / cloud.share(batch * m, n, k)

    def attention_ns(
        self, dtype: str, mask: str, *, batch_heads: float, queries: float, keys: float, head: int
    ) -> tuple[float, float] | None:
        """Time of fused attention, its forward and its backward pass; mask is none, causal or added."""
        found = []
        for passes in ("forward", "backward"):
            cloud = _cloud("attention", dtype, mask, passes)
            if cloud is None:
                return None
            flops, num_bytes = _attention_work(dtype, mask, passes, batch_heads, queries, keys, head)
            found.append(self._roof_ns(flops, dtype, num_bytes) / cloud.share((queries * keys) ** 0.5, head))
        return found[0], found[1]

    def convolution_ns(self, dtype: str, layout: str, passes: str, sizes: Convolution) -> float | None:
        """Time of a convolution (passes: forward) or of its gradient of input or weight; layout: nchw or nhwc."""
        cloud = _cloud(*_convolution_key(sizes), dtype, layout, passes)
        if cloud is None:
            return None
        num_bytes = sizes.num_bytes(_ELEMENT_BYTES[dtype])
        return self._roof_ns(sizes.flops, dtype, num_bytes) / cloud.share(*_convolution_place(sizes))

    def image_pass_ns(self, name: str, dtype: str, layout: str, passes: str, dims: Dims) -> float | None:
        """Time of a norm or a pooling of images [batch, channels, height, width]; passes: forward, backward."""
        cloud = _cloud(name, dtype, layout, passes)
        if cloud is None or len(dims) < 3:
            return None
        num_bytes = 2.0 * prod(dims) * _ELEMENT_BYTES[dtype]
        return self._roof_ns(0.0, dtype, num_bytes) / cloud.share(dims[1], prod(dims[2:]))

    def elementwise_ns(self, num_bytes: float) -> float:
        """Time of an element-wise kernel that moves so many bytes."""
        if num_bytes <= 0:
            return _START_NS
        cloud = _cloud("elementwise")
        return self._roof_ns(0.0, "float32", num_bytes) / (1.0 if cloud is None else cloud.share(num_bytes))

    def optimizer_ns(self, name: str, way: str, dtype: str, elements: float) -> float | None:
        """Time of an update of all parameters; way: fused or foreach."""
        cloud = _cloud("optimizer", name, way, dtype)
        if cloud is None or elements <= 0:
            return None
        return self._roof_ns(0.0, dtype, elements * _ELEMENT_BYTES[dtype] * ACCESSES[name]) / cloud.share(elements)


def _cloud(*key: str) -> _Cloud | None:
    """Measured cases of a kind of work; kernels of both 16-bit types are alike where one alone was measured."""
    table = measured(key[0])
    return table.get(key) or table.get(tuple("bfloat16" if word == "float16" else word for word in key))


ACCESSES = {"AdamW": 7, "SGD": 5}
"""Reads and writes of an element by one fused update."""


class _Work(NamedTuple):
    flops: float
    num_bytes: float


def _product_work(dtype: str, m: float, n: float, k: float) -> _Work:
    return _Work(2.0 * m * n * k, _ELEMENT_BYTES[dtype] * (m * k + n * k + m * n))


def _batch_work(dtype: str, batch: int, m: int, n: int, k: int) -> _Work:
    one = _product_work(dtype, m, n, k)
    return _Work(batch * one.flops, batch * one.num_bytes)


def _attention_work(
    dtype: str, mask: str, passes: str, batch_heads: float, queries: float, keys: float, head: float
) -> _Work:
    pairs = queries * keys * (0.5 if mask == "causal" else 1.0)
    flops = batch_heads * pairs * head * (4.0 if passes == "forward" else 10.0)
    traffic = batch_heads * (queries + keys) * head * _ELEMENT_BYTES[dtype] * (2.0 if passes == "forward" else 4.0)
    return _Work(flops, traffic)


def _convolution_key(sizes: Convolution) -> Key:
    return ("convolution", "depthwise" if sizes.is_depthwise else "dense")


def _convolution_place(sizes: Convolution) -> tuple[float, ...]:
    groups = max(sizes.groups, 1.0)
    return sizes.channels / groups, sizes.filters / groups, sizes.window, sizes.outputs


def _roof_ns(gpu: GpuModel, flops: float, dtype: str, num_bytes: float) -> float:
    peak = gpu.peak_flops(dtype) if flops else None
    return max(flops / peak * 1e9 if peak else 0.0, num_bytes / gpu.memory_bytes_per_second * 1e9)


@lru_cache(maxsize=32)
def measured(kind: str) -> dict[Key, _Cloud]:
    """The part of the table of one kind of work, which a line begins with."""
    gpu = find_gpu(kernel_times_h200.GPU)
    if gpu is None:
        return {}
    places: dict[Key, list[tuple[float, ...]]] = defaultdict(list)
    shares: dict[Key, list[float]] = defaultdict(list)
    for line in kernel_times_h200.ROWS.splitlines():
        for key, place, work, dtype, us in _read_line(line) if line.startswith(f"{kind} ") else ():
            if us > 0:
                places[key].append(tuple(log2(max(size, 1.0)) for size in place))
                shares[key].append(max(_roof_ns(gpu, work.flops, dtype, work.num_bytes), _START_NS) / (us * 1e3))
    return {key: _Cloud(places[key], shares[key], _REACHES.get(key[:2], _Reach())) for key in places}


class _Case(NamedTuple):
    key: Key
    place: tuple[float, ...]
    work: _Work
    dtype: str
    us: float


def _read_line(line: str) -> Iterator[_Case]:
    """Cases of one line of the table; see `benchmarks.kernel_rates.table`."""
    words = line.split()
    kind, of = words[0], [word for word in words[1:] if ":" not in word]
    times = {name: float(us) for name, us in (word.split(":") for word in words if ":" in word) if us != "-"}
    if kind == "product":
        dtype, layout, m, n = of[0], of[1], float(of[2]), float(of[3])
        for inner, us in times.items():
            k = float(inner)
            if not any(size % _FITTING for size in (m, n, k)):
                yield _Case((kind, dtype, layout), (m, n, k), _product_work(dtype, m, n, k), dtype, us)
    elif kind == "attention":
        dtype, mask, (batch, heads, length, head) = of[0], of[1], map(float, of[2:])
        for passes, us in _by_pass(times):
            work = _attention_work(dtype, mask, passes, batch * heads, length, length, head)
            yield _Case((kind, dtype, mask, passes), (length, head), work, dtype, us)
    elif kind == "convolution":
        dtype, layout, sizes = of[0], of[1], Convolution(*map(float, of[2:]))
        work = _Work(sizes.flops, sizes.num_bytes(_ELEMENT_BYTES[dtype]))
        for passes, us in times.items():
            key = (*_convolution_key(sizes), dtype, layout, passes)
            yield _Case(key, _convolution_place(sizes), work, dtype, us)
    elif kind in _IMAGE_PASSES:
        dtype, layout, (batch, channels, size) = of[0], of[1], map(float, of[2:])
        work = _Work(0.0, 2.0 * batch * channels * size**2 * _ELEMENT_BYTES[dtype])
        for passes, us in _by_pass(times):
            yield _Case((kind, dtype, layout, passes), (channels, size**2), work, dtype, us)
    elif kind == "elementwise":
        dtype, num_bytes = of[0], (float(of[1]) + 1) * float(of[2]) * _ELEMENT_BYTES[of[0]]
        yield _Case((kind,), (num_bytes,), _Work(0.0, num_bytes), dtype, times.get("us", 0.0))
    elif kind == "optimizer":
        name, way, dtype, elements = of[0], of[1], of[2], float(of[4])
        work = _Work(0.0, elements * _ELEMENT_BYTES[dtype] * ACCESSES[name])
        yield _Case((kind, name, way, dtype), (elements,), work, dtype, times.get("us", 0.0))


_FITTING = 8
"""Elements that fit tensor-core kernels of all types; other sizes are measured beside, and no point to start from."""
_IMAGE_PASSES = ("batch_norm", "group_norm", "max_pool")


def _by_pass(times: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The forward pass, and the backward pass as what both take more."""
    forward, both = times.get("forward", 0.0), times.get("both", 0.0)
    yield "forward", forward
    if both > forward:
        yield "backward", both - forward
