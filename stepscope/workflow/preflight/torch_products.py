"""Which matrices are multiplied, by which of the GPU's units, and is the result right?"""

from __future__ import annotations

from collections.abc import Callable

import torch

from stepscope.workflow.preflight.device import UnsupportedError

_TYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "tfloat32": torch.float32,
    "float32": torch.float32,
    "float8": torch.float8_e4m3fn,
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKED_ROWS = 8
_SEED = 20


def normal_product(dtype: str, size: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Multiplies two square matrices, always the same.

    They are normally distributed, as weights and activations are: zeros and whole numbers draw less power.

    Raises:
        UnsupportedError: the device has no units for this type.
    """
    generator = torch.Generator(device).manual_seed(_SEED)
    left, right = (torch.randn(size, size, generator=generator, device=device) for _ in range(2))
    return _product_of(dtype, left, right)


def count_differing(product: Callable[[], torch.Tensor], num_repeats: int) -> int:
    """How many repeats of a product are not bit for bit the first.

    Args:
        product: may give its result in the same memory each time.
        num_repeats: after the first.
    """
    first = _bits(product()).clone()
    return sum(not torch.equal(first, _bits(product())) for _ in range(num_repeats))


def count_wrong(dtype: str, size: int, device: torch.device) -> int:
    """Elements of a product of -1, 0 and 1 that are wrong.

    All its sums are whole numbers far below 2 ** 24, so that every order of summation and every unit gives the same
    bits once rounded to the result's type. It is compared with the float32 product, which other units make, and rows
    of that one with the host's in float64.

    Raises:
        UnsupportedError: the device has no units for this type.
    """
    generator = torch.Generator(device).manual_seed(_SEED)
    left, right = (torch.randint(-1, 2, (size, size), generator=generator, device=device).float() for _ in range(2))
    result = _product_of(dtype, left, right, fast=False)()
    exact = _product_of("float32", left, right)()
    rows = torch.arange(0, size, max(1, size // _CHECKED_ROWS))
    on_host = left[rows.to(device)].cpu().double() @ right.cpu().double()
    wrong_rows = (exact[rows.to(device)].cpu().double() != on_host).sum()
    return int((result != exact.to(result.dtype)).sum()) + int(wrong_rows)


def _bits(result: torch.Tensor) -> torch.Tensor:
    """The result as whole numbers, so that two NaN of the same bits are equal."""
    return result.view(_BITS[result.element_size()])


def _product_of(
    dtype: str, left: torch.Tensor, right: torch.Tensor, *, fast: bool = True
) -> Callable[[], torch.Tensor]:
    """
    Args:
        dtype: a word of `core.preflight.DTYPES`.
        left, right: float32.
        fast: whether float8 products may be summed up in fewer bits than float32 has.
    """
    _check_units(dtype, left.device)
    if dtype == "float8":
        return _scaled_product_of(left, right, fast=fast)
    left, right = left.to(_TYPES[dtype]), right.to(_TYPES[dtype])
    result = torch.empty_like(left)
    precision = "high" if dtype == "tfloat32" else "highest"

    def product() -> torch.Tensor:
        torch.set_float32_matmul_precision(precision)
        return torch.matmul(left, right, out=result)

    return product


def _scaled_product_of(left: torch.Tensor, right: torch.Tensor, *, fast: bool) -> Callable[[], torch.Tensor]:
    """cuBLASLt takes the second factor by columns, one scale a matrix, and gives bfloat16."""
    first, second = left.to(_TYPES["float8"]), right.t().contiguous().to(_TYPES["float8"]).t()
    one = torch.ones((), dtype=torch.float32, device=left.device)
    return lambda: torch._scaled_mm(
        first, second, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def _check_units(dtype: str, device: torch.device) -> None:
    if device.type == "cpu":
        if dtype in ("tfloat32", "float8"):
            raise UnsupportedError("the CPU has no units for it")
        return
    if torch.version.hip:
        if dtype in ("tfloat32", "float8"):
            raise UnsupportedError("not measured on AMD GPUs")
        return
    if dtype == "float8" and torch.__version__ < "2.5":
        raise UnsupportedError("torch has such products from 2.5 on")
    capability = torch.cuda.get_device_capability(device)
    least = {"bfloat16": (8, 0), "tfloat32": (8, 0), "float8": (8, 9), "float16": (7, 0)}.get(dtype, (0, 0))
    if capability < least:
        raise UnsupportedError(f"compute capability {capability[0]}.{capability[1]} has no units for it")
