"""Impossible models and batches are rejected, however they are requested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.plan import find_preset


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("batch_size", 0, "batch size must be at least 1, not 0"),
        ("batch_size", -8, "batch size must be at least 1, not -8"),
        ("num_layers", 0, "num layers must be at least 1"),
        ("num_layers", 99_999_999, "a model has at most 10,000 layers here, not 99,999,999"),
        ("sequence_length", 0, "sequence length must be at least 1"),
        ("num_heads", 3, "hidden size of 64 cannot be divided over 3 heads"),
        ("learning_rate", 0.0, "learning rate is above 0"),
        ("learning_rate", float("nan"), "learning rate is above 0"),
        ("num_loader_workers", -1, "number of workers not below"),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        replace(find_preset("tiny"), **{field: value})
