"""Listed activations have the bytes that autograd saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.reference_workloads.estimate.flops import element_bytes, num_parameters, stage_parts
from stepscope.reference_workloads.estimate.memory import kept_bytes_per_token
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from stepscope.reference_workloads.recipe import Recipe


@pytest.mark.parametrize("architecture", ["gpt", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_bytes_to_the_byte(dtype: str, architecture: str) -> None:
    torch = pytest.importorskip("torch")
    from stepscope.reference_workloads.models.transformer import seeded_stage
    from stepscope.reference_workloads.parallelism.pipeline import next_token_loss

    preset = replace(
        find_preset("tiny"),
        architecture=architecture,
        dtype=dtype,
        hidden_size=128,
        vocab_size=96,
        sequence_length=64,
    )
    stage = seeded_stage(preset, range(preset.num_layers), seed=0, device=torch.device("cpu"))
    own = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    assert sum(parameter.numel() for parameter in stage.parameters()) == num_parameters(preset)
    saved = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address comes twice
        return tensor

    tokens = torch.randint(0, preset.vocab_size, (preset.batch_size, preset.sequence_length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = next_token_loss(stage(tokens), tokens)
    assert loss.requires_grad
    copies = element_bytes(preset) if dtype == "bfloat16" else 0
    listed = sum(
        tokens.numel() * kept_bytes_per_token(part.kind, ParallelPlan(), preset, Recipe()) + copies * part.matrices
        for part in stage_parts(ParallelPlan(), preset, 0)
    )
    number_of_targets = 4
    if preset.is_llama:
        # cosines and sines, and what RMSNorm keeps beside its input where it is not fused
        head_size = preset.hidden_size // preset.num_heads
        listed += 4 * preset.sequence_length * head_size * 1.0 * preset.num_layers
        listed += (2 * preset.num_layers + 1) * tokens.numel() * 4 * preset.hidden_size
    else:
        listed += 8 * preset.sequence_length  # places
    assert sum(size for size, _ in saved.values()) == listed + number_of_targets
