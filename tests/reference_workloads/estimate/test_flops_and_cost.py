"""FLOPs and cost agree with closed forms and with torch's counter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.estimate.communication import micro_batch_all_reduces
from stepscope.reference_workloads.estimate.estimate import parse_num_tokens, training_cost
from stepscope.reference_workloads.estimate.flops import block_matrices, stage_flops, step_flops
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from stepscope.reference_workloads.recipe import Recipe


def test_thirty_billion_parameters_and_two_trillion_tokens() -> None:
    tokens_per_second = 1000 * 500e12 / (6 * 30e9)
    cost = training_cost(
        num_parameters=30e9,
        num_tokens=2e12,
        tokens_per_second=tokens_per_second,
        num_gpus=1000,
        price_per_gpu_hour=2.0,
    )
    assert cost.flops == pytest.approx(360e21)
    assert cost.gpu_hours == pytest.approx(200_000)
    assert cost.days == pytest.approx(200 / 24)
    assert cost.money == pytest.approx(400_000)
    assert training_cost(num_parameters=1, num_tokens=1, tokens_per_second=1).money is None


@pytest.mark.parametrize(("text", "amount"), [("2T", 2e12), ("1.5b", 1.5e9), ("300e9", 3e11), ("7", 7), (".5M", 5e5)])
def test_amounts_as_people_write_them(text: str, amount: float) -> None:
    assert parse_num_tokens(text) == amount


@pytest.mark.parametrize("text", ["", "0", "-2T", "2X", "T", "1e999"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--tokens: .* is not a number above 0; give an amount like 2T"):
        parse_num_tokens(text, option="--tokens")


@pytest.mark.parametrize(
    ("hidden", "layers", "sequence", "batch", "milliseconds", "mfu"),
    # MFU of an H200's 989.4 TFLOP/s, by 6 FLOPs a matrix parameter and token, and causal attention halved
    [(2048, 16, 1024, 16, 180.07274, 0.472182), (4096, 6, 2048, 8, 238.641446, 0.537898)],
)
def test_model_flops_are_those_of_the_measured_mfu(
    hidden: int, layers: int, sequence: int, batch: int, milliseconds: float, mfu: float
) -> None:
    preset = replace(
        find_preset("one-gpu"), hidden_size=hidden, num_layers=layers, sequence_length=sequence, batch_size=batch
    )
    flops = step_flops(preset, Recipe()).model
    assert flops / (milliseconds / 1e3) / 989.4e12 == pytest.approx(mfu, rel=1e-3)


def test_closed_form_is_what_torch_counts() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    preset = find_preset("tiny")
    tokens, hidden = preset.batch_size * preset.sequence_length, preset.hidden_size
    block = [torch.nn.Linear(hidden, rows, bias=False) for rows in (3 * hidden, hidden, 8 * hidden)]
    assert sum(layer.weight.numel() for layer in block) == block_matrices(preset)
    flops = step_flops(preset, Recipe())
    with FlopCounterMode(display=False) as counter:
        data = torch.randn(tokens, hidden)
        first = torch.nn.Linear(hidden, hidden, bias=False)
        for layer in block:
            layer(first(data)).sum().backward()
    counted = counter.get_total_flops()
    # each layer's forward and backward, and three times the little one before it, whose input needs no gradient
    assert counted - 3 * 4 * tokens * hidden**2 == 6 * tokens * block_matrices(preset)
    assert flops.executed - flops.model == pytest.approx(tokens * preset.sequence_length * hidden * preset.num_layers)


@pytest.mark.parametrize("workload", ["gpt", "llama"])
def test_what_is_computed_again_is_what_torch_computes_again(workload: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from stepscope.reference_workloads.models.transformer import Stage
    from stepscope.reference_workloads.parallelism.sharding import recompute

    preset = find_preset("tiny", workload)
    counted = {}
    for how in ("none", "full"):
        stage = Stage(preset, range(preset.num_layers))
        for block in stage.blocks.values():
            recompute(block, how)
        with FlopCounterMode(display=False) as counter:
            stage(torch.zeros(preset.batch_size, preset.sequence_length, dtype=torch.int64)).sum().backward()
        counts = counter.get_flop_counts()["Global"]
        counted[how] = sum(count for operator, count in counts.items() if "attention" not in str(operator))
    none, full = (step_flops(preset, Recipe(activation_checkpointing=how)) for how in ("none", "full"))
    assert full.model == none.model
    tokens = preset.batch_size * preset.sequence_length
    attention = 2 * tokens * preset.sequence_length * preset.hidden_size * preset.num_layers
    assert full.executed - none.executed == counted["full"] - counted["none"] + attention


@pytest.mark.parametrize(("how", "count"), [("none", 16), ("full", 20)])
@pytest.mark.parametrize("workload", ["gpt", "llama"])
def test_all_reduces_of_tensor_parallelism_are_those_that_torch_starts(workload: str, how: str, count: int) -> None:
    pytest.importorskip("torch")
    num_layers = find_preset("tiny", workload).num_layers
    planned = micro_batch_all_reduces(ParallelPlan(tp=2), Recipe(activation_checkpointing=how), num_layers)
    # in a process of its own: torch keeps what it knows of the mesh, and would take another test's for this one's
    command = [sys.executable, "-c", _COUNT_ALL_REDUCES, workload, how]
    counted = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert sum(planned) == int(counted.stdout) == count


_COUNT_ALL_REDUCES = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from stepscope.reference_workloads import ParallelPlan
from stepscope.reference_workloads.plan import find_preset
from stepscope.reference_workloads.parallelism.sharding import recompute
from stepscope.reference_workloads.models.transformer import Stage
from stepscope.reference_workloads.parallelism.sharding import cut_stage

workload, how = sys.argv[1:]
preset = find_preset("tiny", workload)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
stage = Stage(preset, range(preset.num_layers))
cut_stage(stage, ParallelPlan(tp=2), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
for block in stage.blocks.values():
    recompute(block, how)
with torch.profiler.profile() as prof:
    stage(torch.zeros(2, preset.sequence_length, dtype=torch.int64)).sum().backward()
print(sum("all_reduce" in event.name for event in prof.events()))
"""


@given(pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2]), micro_batches=st.sampled_from([4]))
def test_stages_add_up_to_the_step(pp: int, dp: int, micro_batches: int) -> None:
    preset = find_preset("tiny")
    plan = ParallelPlan(pp=pp, dp=dp, micro_batches=micro_batches)
    stages = [stage_flops(plan, preset, Recipe(), stage) for stage in range(plan.num_stages)]
    total = sum(stage.forward + stage.backward for stage in stages) * dp * micro_batches
    assert total == pytest.approx(step_flops(preset, Recipe()).model)
