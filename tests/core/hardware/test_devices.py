"""Readings of one GPU or instance are recognized as such, whichever source reports them."""

from __future__ import annotations

from stepscope.core.hardware.devices import Device, DeviceJoin, device_of
from stepscope.core.metrics.readings import GPU, Collection, Reading, labels_of

_OF_NVML = Device("MIG-b", "1", "7", profile="1g.10gb")
_OF_PAGE = Device("GPU-a", "4", "7")


def _up(**labels: str | int) -> Collection:
    return Collection((Reading(GPU + "up", 1.0, labels_of(**labels), 0),))


def test_an_instance_is_the_same_by_its_own_uuid_and_by_its_gpus() -> None:
    join = DeviceJoin()
    nvml = join.source(_up(gpu=1, uuid="GPU-a"))
    assert nvml(Device("GPU-a", "1")) == Device("GPU-a", "1")
    assert nvml(_OF_NVML) == _OF_NVML
    page = join.source(_up(gpu=4, uuid="GPU-a"))
    assert page(_OF_PAGE) == _OF_NVML
    assert page(Device("GPU-a", "4")) == Device("GPU-a", "1")
    assert join.gpu_of(_OF_NVML) == "GPU-a"
    assert join.whole(_OF_NVML) == Device("GPU-a", "1")


def test_an_instance_that_a_page_alone_reports_keeps_its_name() -> None:
    assert DeviceJoin().source(Collection())(_OF_PAGE) == _OF_PAGE


def test_a_gpu_without_uuid_is_known_by_its_index_and_what_is_no_gpus_by_nothing() -> None:
    gpu = Device(index="5")
    join = DeviceJoin()
    assert join.source(_up(gpu=1, uuid="GPU-a"))(gpu) == gpu
    assert (join.gpu_of(gpu), gpu.key, gpu.name) == ("5", "gpu 5", "5")
    assert device_of(labels_of(gpu=5)) == gpu
    assert device_of(labels_of(device="sda")) is None
    assert device_of(labels_of(pci_bus_id="00000000:0F:00.0", xid=79)) is None


def test_a_process_is_its_gpus() -> None:
    assert device_of(labels_of(gpu=1, uuid="GPU-a", gpu_instance=7, pid=4)) == Device("GPU-a", "1")


def test_a_device_comes_out_of_its_labels_as_it_went_in() -> None:
    instance = labels_of(gpu=1, uuid="MIG-b", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")
    device = device_of(instance)
    assert device == Device("MIG-b", "1", "7", "0", "1g.10gb")
    assert (device.labels(), device.name, device.key) == (instance, "1/7/0", "MIG-b")
    assert (_OF_PAGE.key, str(Device("GPU-a", "1"))) == ("GPU-a/7", "GPU 1 (GPU-a)")
