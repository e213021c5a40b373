"""Deferred scalars: read only once the device has passed them, with the value they had."""

from __future__ import annotations

import pytest

from stepscope.training.steps.scalars import DeviceScalarReader
from tests.training.fake_device import FakeDevice

torch = pytest.importorskip("torch")


def test_numbers_are_those_of_the_time_they_were_taken() -> None:
    device = FakeDevice()
    reader = DeviceScalarReader(device)
    loss = torch.tensor(2.5, requires_grad=True)
    tokens = torch.tensor(2**40 + 1)
    figures = {
        "loss": loss,
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "tokens": tokens,
        "on": torch.tensor(True),
    }
    deferred = reader.take({name: device.hold(tensor) for name, tensor in figures.items()})
    assert deferred is not None
    with torch.no_grad():
        loss.add_(1)
    assert not deferred.are_there()
    assert deferred.read() == {}
    device.run()
    assert deferred.are_there()
    assert deferred.read() == {"loss": 2.5, "half": 0.5, "tokens": 2**40 + 1, "on": True}
    assert deferred.read() == {}


def test_memory_is_pinned_once_and_places_are_used_again() -> None:
    device = FakeDevice()
    reader = DeviceScalarReader(device)
    for step in range(3000):
        deferred = reader.take({"loss": device.hold(torch.tensor(float(step)))})
        assert deferred is not None
        device.run()
        assert deferred.are_there()
        assert deferred.read() == {"loss": step}
    assert device.num_pinned == 1


def test_evaluation_and_training_may_both_tell_figures() -> None:
    device = FakeDevice()
    reader = DeviceScalarReader(device)
    with torch.inference_mode():
        evaluated = reader.take({"loss": device.hold(torch.tensor(1.5))})
    trained = reader.take({"loss": device.hold(torch.tensor(2.5, requires_grad=True))})
    device.run()
    assert evaluated is not None
    assert trained is not None
    assert evaluated.are_there()
    assert trained.are_there()
    assert (evaluated.read(), trained.read()) == ({"loss": 1.5}, {"loss": 2.5})


def test_without_a_free_place_nothing_waits() -> None:
    reader = DeviceScalarReader(FakeDevice())
    taken = [reader.take({"loss": torch.tensor(1.0), "grad_norm": torch.tensor(1.0)}) for _ in range(600)]
    assert [deferred is not None for deferred in taken] == [True] * 512 + [False] * 88


def test_places_of_numbers_that_nobody_waits_for_are_used_again_once_the_device_is_through() -> None:
    device = FakeDevice()
    reader = DeviceScalarReader(device)
    taken = [reader.take({"loss": device.hold(torch.tensor(1.0))}) for _ in range(1024)]
    for deferred in taken:
        assert deferred is not None
        deferred.give_up()
        deferred.give_up()
    assert reader.take({"loss": torch.tensor(1.0)}) is None  # the device will still write to all
    device.run()
    again = [reader.take({"loss": device.hold(torch.tensor(float(number)))}) for number in range(1024)]
    device.run()
    numbers = [deferred.read()["loss"] for deferred in again if deferred is not None and deferred.are_there()]
    assert numbers == list(range(1024))
    assert reader.take({"loss": torch.tensor(1.0)}) is not None


def test_a_fault_of_the_gpu_leaves_the_numbers_out() -> None:
    device = FakeDevice()
    deferred = DeviceScalarReader(device).take({"loss": device.hold(torch.tensor(1.0))})
    assert deferred is not None
    device.fault = True
    assert deferred.are_there()
    assert deferred.read() == {}
