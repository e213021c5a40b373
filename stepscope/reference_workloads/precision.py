"""In which dtype are matrices multiplied? Weights, gradients and optimizer stay in float32."""

from __future__ import annotations

import torch

from stepscope.reference_workloads.presets import Preset

_COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def compute_dtype(preset: Preset) -> torch.dtype:
    """The dtype of the preset's matmuls."""
    return _COMPUTE_DTYPES[preset.dtype]


def low_precision(preset: Preset) -> torch.dtype | None:
    """The same where it is not that of the weights; None where it is."""
    dtype = compute_dtype(preset)
    return None if dtype is torch.float32 else dtype
