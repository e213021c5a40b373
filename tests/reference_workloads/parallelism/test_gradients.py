"""Time at which the first bucket of DDP is waited for."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from stepscope.reference_workloads.parallelism import gradients  # noqa: E402


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Mock:
    calls = Mock()
    monkeypatch.setattr(torch.cuda, "synchronize", calls.synchronize)
    monkeypatch.setattr(time, "sleep", calls.sleep)
    return calls


class Wrapped(DistributedDataParallel):
    """By its type alone: a whole one needs a process group."""

    def __init__(self) -> None:
        nn.Module.__init__(self)


def test_ddp_on_a_gpu_waits_for_the_device_then_for_several_looks_of_the_watchdog(waits: Mock) -> None:
    gradients.forget_first_reductions([nn.Linear(1, 1), Wrapped()], torch.device("cuda"))
    assert [name for name, _, _ in waits.mock_calls] == ["synchronize", "sleep"]
    waits.sleep.assert_called_once_with(gradients.WATCHDOG_SECONDS)
    assert gradients.WATCHDOG_SECONDS >= 3 * 0.1


@pytest.mark.parametrize(
    ("modules", "device"), [([], "cuda"), ([nn.Linear(1, 1)], "cuda"), ([Wrapped()], "cpu")], ids=range(3)
)
def test_others_wait_for_nothing(waits: Mock, modules: list[Any], device: str) -> None:
    gradients.forget_first_reductions(modules, torch.device(device))
    assert not waits.mock_calls
