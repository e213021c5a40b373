"""Is what is not known told apart from what is zero?"""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from stepscope.core.readings import (
    Collection,
    Finding,
    Missing,
    MissingReason,
    Reading,
    labels_of,
    with_labels,
)

GPU = labels_of(uuid="GPU-1", gpu=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_no_reading(value: float) -> None:
    with pytest.raises(ValueError, match="must be a Missing"):
        Reading("stepscope_gpu_power_watts", value, GPU, 1)


def test_a_reading_stays_as_it_is_and_can_be_copied() -> None:
    reading = Reading("stepscope_gpu_power_watts", 1.0, GPU, 1)
    with pytest.raises(FrozenInstanceError):
        reading.value = 2.0  # type: ignore[misc]
    assert replace(reading, value=2.0) == Reading("stepscope_gpu_power_watts", 2.0, GPU, 1)
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert len({reading, replace(reading)}) == 1


def test_labels_are_equal_whatever_their_order() -> None:
    assert labels_of(gpu=0, uuid="GPU-1") == GPU == (("gpu", "0"), ("uuid", "GPU-1"))
    assert with_labels(GPU, pid=7, gpu=1) == (("gpu", "1"), ("pid", "7"), ("uuid", "GPU-1"))


def test_collections_join_in_their_order() -> None:
    reading = Reading("stepscope_gpu_power_watts", 0.0, GPU, 1)
    missing = Missing("stepscope_gpu_fan_speed_ratio", GPU, MissingReason.NOT_SUPPORTED)
    finding = Finding("xid", "XID 79", GPU, 2)
    joined = Collection.joined([Collection((reading,)), Collection((reading,), (missing,), (finding,)), Collection()])
    assert joined == Collection((reading, reading), (missing,), (finding,))
