"""Different or wrong matrix products are counted. On the CPU, with torch's own products."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from stepscope.workflow.preflight import torch_device
from stepscope.workflow.preflight.device import UnsupportedError
from stepscope.workflow.preflight.torch_device import count_differing, count_wrong, normal_product

_CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def precision_stays() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def into_the_same_memory(*results: float) -> Callable[[], torch.Tensor]:
    memory, left = torch.zeros(4), iter(results)
    return lambda: memory.fill_(next(left))


def test_repeats_are_compared_with_a_copy_of_the_first_and_by_their_bits() -> None:
    assert count_differing(into_the_same_memory(1.0, 1.0, 2.0, 1.0, -1.0), 4) == 2
    assert count_differing(into_the_same_memory(float("nan"), float("nan")), 1) == 0
    assert count_differing(into_the_same_memory(0.0, -0.0), 1) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_right_products_have_no_wrong_element_and_are_alike(dtype: str) -> None:
    assert count_wrong(dtype, 96, _CPU) == 0
    assert count_differing(normal_product(dtype, 64, _CPU), 3) == 0


def test_one_wrong_element_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch_device._product_of

    def broken(dtype: str, left: torch.Tensor, right: torch.Tensor, *, fast: bool = True) -> Callable[[], torch.Tensor]:
        def product() -> torch.Tensor:
            result = real(dtype, left, right, fast=fast)()
            if dtype == "bfloat16":
                result[5, 7] += 1
            return result

        return product

    monkeypatch.setattr(torch_device, "_product_of", broken)
    assert count_wrong("bfloat16", 96, _CPU) == 1


@pytest.mark.parametrize("dtype", ["tfloat32", "float8"])
def test_types_that_the_cpu_does_not_have(dtype: str) -> None:
    with pytest.raises(UnsupportedError):
        count_wrong(dtype, 16, _CPU)
