"""Are readings of one GPU or instance known as such, whoever tells them?"""

from __future__ import annotations

from stepscope.core.hardware.devices import GpuPlaces
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import Reading, labels_of

_NVML = GpuPlaces([Reading(GPU + "up", 1.0, labels_of(gpu=1, uuid="GPU-a"), 0)])


def test_an_instance_is_the_same_by_its_own_uuid_and_by_its_gpus() -> None:
    by_nvml = _NVML.place({"gpu": "1", "uuid": "MIG-b", "gpu_instance": "7", "mig_profile": "1g.10gb"})
    by_page = GpuPlaces([]).place({"gpu": "4", "uuid": "GPU-a", "gpu_instance": "7"})
    assert by_nvml == by_page == ("GPU-a", "7")


def test_a_gpu_without_uuid_is_known_by_its_index_and_what_is_no_gpus_by_nothing() -> None:
    assert _NVML.place({"gpu": "5"}) == ("5", "")
    assert _NVML.place({"device": "sda"}) is None


def test_a_process_is_its_gpus() -> None:
    assert _NVML.place({"gpu": "1", "uuid": "GPU-a", "gpu_instance": "7", "pid": "4"}) == ("GPU-a", "")
