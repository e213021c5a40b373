"""FLOPs agree with the independent count of torch's FlopCounterMode, which sees every call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.roofline.operator_cost import OperatorFlops, operator_flops
from tests.analyzer.roofline.resnet import resnet50
from tests.trace.one_rank import read_trace


def recorded(run: Callable[[], Tensor], tmp_path: Path) -> OperatorFlops:
    """What we make of a profile of forward and backward."""
    path = tmp_path / "trace.json"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.autograd.backward(run().sum())
    profiler.export_chrome_trace(str(path))
    return operator_flops(read_trace(path))


def counted(run: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(run().sum())
    return int(counter.get_total_flops())


def tensor(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


OPERATIONS: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: tensor(8, 16) @ tensor(16, 24),
    "matmul over a batch": lambda: tensor(3, 5, 8, 16) @ tensor(3, 5, 16, 24),
    "matmul broadcast": lambda: tensor(3, 8, 16) @ tensor(16, 24),
    "linear": lambda: functional.linear(tensor(2, 7, 16), tensor(24, 16), tensor(24)),
    "linear without bias": lambda: functional.linear(tensor(2, 7, 16), tensor(24, 16)),
    "baddbmm": lambda: torch.baddbmm(tensor(3, 8, 24), tensor(3, 8, 16), tensor(3, 16, 24)),
    "einsum": lambda: torch.einsum("bqhd,bkhd->bhqk", tensor(2, 8, 3, 16), tensor(2, 9, 3, 16)),
    "conv1d": lambda: functional.conv1d(tensor(2, 4, 32), tensor(6, 4, 5), stride=2, padding=1),
    "conv2d": lambda: functional.conv2d(tensor(2, 4, 17, 19), tensor(6, 4, 3, 5), stride=2, padding=(1, 2)),
    "conv2d dilated": lambda: functional.conv2d(tensor(2, 4, 17, 19), tensor(6, 4, 3, 3), dilation=2),
    "conv3d": lambda: functional.conv3d(tensor(2, 4, 7, 8, 9), tensor(6, 4, 3, 3, 3), padding=1),
    "transposed": lambda: functional.conv_transpose2d(tensor(2, 4, 7, 9), tensor(4, 6, 3, 3), stride=2),
    "norms, softmax, loss": lambda: functional.cross_entropy(
        functional.layer_norm(functional.softmax(tensor(8, 16), -1), (16,)), torch.arange(8)
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operator_costs_what_the_counter_counts(operation: str, tmp_path: Path) -> None:
    found = recorded(OPERATIONS[operation], tmp_path)
    assert found.flops.sum() == counted(OPERATIONS[operation])


@pytest.mark.parametrize(("outputs", "groups"), [(12, 4), (8, 8)])
def test_each_gradient_of_a_grouped_convolution_costs_one_forward(tmp_path: Path, outputs: int, groups: int) -> None:
    def run() -> Tensor:
        return functional.conv2d(tensor(2, 8, 17, 19), tensor(outputs, 8 // groups, 3, 3), groups=groups)

    with FlopCounterMode(display=False) as counter:  # it forgets the groups in backward
        run()
    assert recorded(run, tmp_path).flops.sum() == 3 * counter.get_total_flops()


def test_fused_attention_costs_the_products_of_its_formula(tmp_path: Path) -> None:
    def run() -> Tensor:
        return functional.scaled_dot_product_attention(tensor(2, 3, 32, 16), tensor(2, 3, 32, 16), tensor(2, 3, 32, 16))

    with sdpa_kernel(SDPBackend.MATH):
        expected = counted(run)  # two products forward, four backward
    found = recorded(run, tmp_path)
    assert found.model_flops.sum() == expected
    assert found.flops.sum() == expected * 7 / 6  # the scores are recomputed in backward


def test_a_step_of_resnet_50_costs_what_the_counter_counts(tmp_path: Path) -> None:
    network = resnet50()
    images = torch.randn(2, 3, 32, 32)
    found = recorded(lambda: network(images), tmp_path)
    assert found.flops.sum() == counted(lambda: network(images))
    assert found.model_flops.sum() == found.flops.sum()


@pytest.mark.shared
@pytest.mark.parametrize("num_workers", [0, 4])
def test_recorded_resnet_50_steps_cost_what_the_counter_counts(shared_traces: Path, num_workers: int) -> None:
    trace = read_trace(shared_traces / "public" / "kineto" / f"resnet50_num_workers_{num_workers}.pt.trace.json.gz")
    with torch.device("meta"):
        network, images = resnet50(), torch.empty(32, 3, 224, 224)
    # this trace of torch 1.9 keeps no strides: they are learned from the backward pass
    assert view_rank(trace, 0).step_flops == pytest.approx(counted(lambda: network(images)), rel=0.001)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_forwards_are_executed_but_are_no_model_flops(tmp_path: Path, reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16))
    images = tensor(8, 16)

    def plain() -> Tensor:
        output: Tensor = block(images)
        return output

    def checkpointed() -> Tensor:
        output = checkpoint(block, images, use_reentrant=reentrant)
        assert isinstance(output, Tensor)
        return output

    found = recorded(checkpointed, tmp_path)
    assert found.flops.sum() == counted(checkpointed)
    assert found.model_flops.sum() == counted(plain)
    assert found.flops.sum() > found.model_flops.sum()
