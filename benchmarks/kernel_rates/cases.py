"""Cases whose time is measured: what to run, and the row of the table that its time belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

Run = Callable[[], object]


class Case(NamedTuple):
    """One measurement.

    Attributes:
        row: kind, element type, sizes; the time is added to it.
        prepare: makes the tensors and returns what is measured.
        host_us: what the host needs to launch one run, at most.
        warm_up: runs before it.
    """

    row: dict[str, object]
    prepare: Callable[[], Run]
    host_us: float = 60.0
    warm_up: int = 2


_PRODUCT_SIZES = (64, 256, 1024, 3072, 8192, 16384)
_MOST_FLOPS = 2e12
_TYPES = ("bfloat16", "tfloat32", "float32")
"""As core.hardware names them; tfloat32 is float32 with TF32 allowed."""

_UNALIGNED = ((8192, 50257, 768), (8192, 768, 50257), (50257, 768, 8192), (8192, 4095, 1024), (8192, 1024, 4095))
_PADDED = ((8192, 50304, 768), (8192, 768, 50304), (50304, 768, 8192))
_BATCHED = tuple(product((32, 128), (128, 512, 2048), (64, 128)))

_HEAD_SIZES = (64, 128)
_LENGTHS = (128, 512, 2048, 8192)
_ATTENTION_TOKENS, _HEADS = 16384, 16

_CONVOLUTIONS = (
    # batch, channels, height = width, filters, window, stride, groups
    (64, 3, 224, 64, 7, 2, 1),
    (64, 64, 56, 64, 1, 1, 1),
    (64, 64, 56, 64, 3, 1, 1),
    (64, 64, 56, 256, 1, 1, 1),
    (64, 256, 56, 128, 1, 1, 1),
    (64, 128, 56, 128, 3, 2, 1),
    (64, 128, 28, 128, 3, 1, 1),
    (64, 512, 28, 128, 1, 1, 1),
    (64, 256, 14, 256, 3, 1, 1),
    (64, 1024, 14, 256, 1, 1, 1),
    (64, 512, 7, 512, 3, 1, 1),
    (64, 2048, 7, 512, 1, 1, 1),
    (8, 512, 28, 512, 3, 1, 1),
    (32, 64, 224, 64, 3, 1, 1),
    (8, 320, 64, 320, 3, 1, 1),
    (8, 640, 32, 640, 3, 1, 1),
    (8, 1280, 16, 1280, 3, 1, 1),
    (64, 3, 224, 768, 16, 16, 1),
    (64, 128, 56, 128, 7, 1, 128),
    (64, 512, 14, 512, 7, 1, 512),
    (64, 96, 56, 96, 3, 1, 96),
    (64, 576, 14, 576, 3, 1, 576),
)
_IMAGES = ((64, 64, 112), (64, 256, 56), (64, 512, 28), (64, 2048, 7), (8, 320, 64))
_ELEMENTS = tuple(4**power for power in range(7, 15))
_PARAMETERS = ((160, 160_000), (150, 1_300_000), (60, 16_000_000))
"""Number of tensors and their size."""


def torch_module() -> Any:
    import torch

    return torch


def _type(name: str) -> Any:
    torch = torch_module()
    return torch.float32 if name == "tfloat32" else getattr(torch, name)


def _random(device: str, dtype: str, *sizes: int) -> Any:
    return torch_module().randn(*sizes, device=device, dtype=_type(dtype))


def products(device: str) -> Iterator[Case]:
    """Matrix products of a linear layer: its forward pass (nt), gradient of the input (nn), and of the weight (tn)."""
    shapes = [
        shape for shape in product(_PRODUCT_SIZES, repeat=3) if 2.0 * shape[0] * shape[1] * shape[2] < _MOST_FLOPS
    ]
    for (m, n, k), layout, dtype in product([*_PADDED, *_UNALIGNED, *shapes], ("nt", "nn", "tn"), _TYPES):

        def prepare(m: int = m, n: int = n, k: int = k, layout: str = layout, dtype: str = dtype) -> Run:
            left = _random(device, dtype, k, m).t() if layout == "tn" else _random(device, dtype, m, k)
            right = _random(device, dtype, n, k).t() if layout == "nt" else _random(device, dtype, k, n)
            return lambda: torch_module().mm(left, right)

        yield Case({"kind": "product", "dtype": dtype, "layout": layout, "batch": 1, "m": m, "n": n, "k": k}, prepare)
    for (batch, length, head), layout, dtype in product(_BATCHED, ("nt", "nn"), _TYPES):
        m, n, k = (length, length, head) if layout == "nt" else (length, head, length)

        def prepare_batch(
            batch: int = batch, m: int = m, n: int = n, k: int = k, layout: str = layout, dtype: str = dtype
        ) -> Run:
            left = _random(device, dtype, batch, m, k)
            right = _random(device, dtype, batch, n, k).mT if layout == "nt" else _random(device, dtype, batch, k, n)
            return lambda: torch_module().bmm(left, right)

        yield Case(
            {"kind": "product", "dtype": dtype, "layout": layout, "batch": batch, "m": m, "n": n, "k": k},
            prepare_batch,
        )


def attentions(device: str) -> Iterator[Case]:
    """`scaled_dot_product_attention` as torch chooses its kernel: plain, causal, and with an additive mask."""
    for mask, head, length, dtype in product(("none", "causal", "added"), _HEAD_SIZES, _LENGTHS, _TYPES):
        if dtype == "float32" and length > 2048:
            continue
        batch = max(_ATTENTION_TOKENS // length, 1)
        for passes in ("forward", "both"):

            def prepare(
                mask: str = mask, head: int = head, length: int = length, dtype: str = dtype, batch: int = batch,
                passes: str = passes,
            ) -> Run:  # fmt: skip
                functional = torch_module().nn.functional
                query, key, value, gradient = (_random(device, dtype, batch, _HEADS, length, head) for _ in range(4))
                bias = _random(device, dtype, batch, 1, length, length) if mask == "added" else None
                inputs = [tensor.requires_grad_(passes == "both") for tensor in (query, key, value)]

                def run() -> object:
                    out = functional.scaled_dot_product_attention(*inputs, attn_mask=bias, is_causal=mask == "causal")
                    return torch_module().autograd.grad(out, inputs, gradient) if passes == "both" else out

                return run

            sizes = {"batch": batch, "heads": _HEADS, "length": length, "head": head}
            yield Case({"kind": "attention", "dtype": dtype, "mask": mask, "pass": passes, **sizes}, prepare, 400.0)


def convolutions(device: str) -> Iterator[Case]:
    """Convolutions and their gradients, with cuDNN's heuristics, channels first and last."""
    for shape, dtype, layout, passes in product(
        _CONVOLUTIONS, (*_TYPES, "float16"), ("nchw", "nhwc"), ("forward", "input", "weight")
    ):
        batch, channels, size, filters, window, stride, groups = shape
        if channels == 3 and passes == "input":
            continue

        def prepare(
            shape: tuple[int, ...] = shape, dtype: str = dtype, layout: str = layout, passes: str = passes
        ) -> Run:
            torch = torch_module()
            batch, channels, size, filters, window, stride, groups = shape
            memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
            image = _random(device, dtype, batch, channels, size, size).to(memory_format=memory)
            weight = _random(device, dtype, filters, channels // groups, window, window).to(memory_format=memory)
            padding = 0 if stride == window else window // 2

            def forward() -> Any:
                return torch.nn.functional.conv2d(image, weight, None, stride, padding, 1, groups)

            if passes == "forward":
                return forward
            gradient = torch.randn_like(forward())
            wanted = [passes == "input", passes == "weight", False]
            arguments = (None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, wanted)
            return lambda: torch.ops.aten.convolution_backward(gradient, image, weight, *arguments)

        sizes = {"batch": batch, "channels": channels, "size": size, "filters": filters}
        sizes |= {"window": window, "stride": stride, "groups": groups}
        yield Case({"kind": "convolution", "dtype": dtype, "layout": layout, "pass": passes, **sizes}, prepare)


def passes_over_memory(device: str) -> Iterator[Case]:
    """Element-wise kernels that read one or two tensors and write one."""
    for elements, dtype, reads in product(_ELEMENTS, ("bfloat16", "float32"), (1, 2)):

        def prepare(elements: int = elements, dtype: str = dtype, reads: int = reads) -> Run:
            one, other, out = (_random(device, dtype, elements) for _ in range(3))
            if reads == 1:
                return lambda: torch_module().mul(one, 1.5, out=out)
            return lambda: torch_module().add(one, other, out=out)

        yield Case({"kind": "elementwise", "dtype": dtype, "reads": reads, "elements": elements}, prepare)


def norms(device: str) -> Iterator[Case]:
    """Norms and pooling of images, channels first and last."""
    of_images = product(("batch_norm", "group_norm", "max_pool"), _IMAGES, ("bfloat16", "float32"), ("nchw", "nhwc"))
    for (name, shape, dtype, layout), passes in product(of_images, ("forward", "both")):

        def prepare(
            name: str = name, shape: tuple[int, int, int] = shape, dtype: str = dtype, layout: str = layout,
            passes: str = passes,
        ) -> Run:  # fmt: skip
            torch = torch_module()
            functional = torch.nn.functional
            memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
            image = _random(device, dtype, *shape, shape[2]).to(memory_format=memory)
            weight, bias, mean = (_random(device, "float32", shape[1]) for _ in range(3))
            if name == "group_norm":
                weight, bias = weight.to(image.dtype), bias.to(image.dtype)
            inputs = [tensor.requires_grad_(passes == "both") for tensor in (image, weight, bias)]

            def forward() -> Any:
                if name == "batch_norm":
                    return functional.batch_norm(image, mean, mean.abs(), weight, bias, training=True)
                if name == "group_norm":
                    return functional.group_norm(image, 32, weight, bias)
                return functional.max_pool2d(image, 3, 2, 1)

            if passes == "forward":
                return forward
            wanted = inputs[:1] if name == "max_pool" else inputs
            gradient = torch.randn_like(forward())
            return lambda: torch.autograd.grad(forward(), wanted, gradient)

        sizes = {"batch": shape[0], "channels": shape[1], "size": shape[2]}
        yield Case({"kind": name, "dtype": dtype, "layout": layout, "pass": passes, **sizes}, prepare, 400.0)


def optimizers(device: str) -> Iterator[Case]:
    """Updates of all parameters: fused, and by passes over lists of tensors."""
    for name, way, dtype, (tensors, size) in product(
        ("AdamW", "SGD"), ("fused", "foreach"), ("float32", "bfloat16"), _PARAMETERS
    ):

        def prepare(
            name: str = name, way: str = way, dtype: str = dtype, tensors: int = tensors, size: int = size
        ) -> Run:
            torch = torch_module()
            parameters = [torch.nn.Parameter(_random(device, dtype, size)) for _ in range(tensors)]
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            extra = {"momentum": 0.9} if name == "SGD" else {}
            optimizer = getattr(torch.optim, name)(parameters, lr=1e-6, **{way: True}, **extra)
            return lambda: optimizer.step()

        sizes = {"tensors": tensors, "elements": tensors * size}
        yield Case({"kind": "optimizer", "name": name, "way": way, "dtype": dtype, **sizes}, prepare, 4_000.0)


def compiled(device: str) -> Iterator[Case]:
    """What torch.compile makes of a block's element-wise operators and norms, beside the same operators as they are."""
    for name, way in product(("rms_norm", "gelu_dropout", "layer_norm_residual"), ("plain", "compiled")):

        def prepare(name: str = name, way: str = way) -> Run:
            torch = torch_module()
            functional = torch.nn.functional
            rows, width = 8192, 4096

            def rms_norm(values: Any, residual: Any, weight: Any) -> Any:
                wide = (values + residual).float()
                return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(values.dtype)

            def gelu_dropout(values: Any, residual: Any, weight: Any) -> Any:
                return residual + functional.dropout(functional.gelu(values + weight), 0.1)

            def layer_norm_residual(values: Any, residual: Any, weight: Any) -> Any:
                return functional.layer_norm(values + residual, (width,), weight)

            function = {"rms_norm": rms_norm, "gelu_dropout": gelu_dropout}.get(name, layer_norm_residual)
            function = torch.compile(function) if way == "compiled" else function
            values, residual, gradient = (_random(device, "bfloat16", rows, width) for _ in range(3))
            inputs = [t.requires_grad_() for t in (values, residual, _random(device, "bfloat16", width))]
            return lambda: torch.autograd.grad(function(*inputs), inputs, gradient)

        yield Case({"kind": "block", "name": name, "way": way, "dtype": "bfloat16", "pass": "both"}, prepare, 800.0, 4)


SECTIONS: dict[str, Callable[[str], Iterator[Case]]] = {
    "attention": attentions,
    "convolution": convolutions,
    "elementwise": passes_over_memory,
    "norm": norms,
    "optimizer": optimizers,
    "product": products,
    "compiled": compiled,
}
"""By name, in the order in which they are measured."""
