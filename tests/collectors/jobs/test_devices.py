"""Devices found in the readings of GPU collectors: whole GPUs and instances, with their processes."""

from __future__ import annotations

from stepscope.collectors.jobs.devices import DeviceUsage, device_usages_of
from stepscope.core.metrics.readings import GPU, Collection, Labels, Missing, MissingReason, Reading, labels_of

_A, _B = labels_of(gpu=0, uuid="GPU-a"), labels_of(gpu=10, uuid="GPU-b")
_MIG = labels_of(gpu=10, uuid="MIG-b", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")
_TWO_IN_ONE = labels_of(gpu=10, uuid="GPU-b", gpu_instance=9)


def _said(*told: tuple[str, float, Labels]) -> Collection:
    return Collection(tuple(Reading(GPU + metric, value, tuple(sorted(labels)), 1) for metric, value, labels in told))


def _by_uuid(*collections: Collection) -> dict[str, DeviceUsage]:
    return {one.device.uuid + one.device.instance: one for one in device_usages_of(collections)}


def test_gpus_in_the_order_of_their_index_with_their_minor_numbers() -> None:
    found = device_usages_of(
        [
            _said(
                ("up", 1, _B),
                ("up", 0, _A),
                ("info", 1, (*_A, ("minor_number", "3"))),
                ("info", 1, (*_B, ("minor_number", ""))),
            )
        ]
    )
    assert [(one.device.uuid, one.minor, one.answers) for one in found] == [("GPU-a", "3", False), ("GPU-b", "", True)]


def test_instances_take_the_place_of_their_gpu_also_when_one_has_several_compute_instances() -> None:
    found = _by_uuid(
        _said(
            ("up", 1, _B),
            ("mig_enabled", 1, _B),
            ("graphics_engine_active_ratio", 0.25, _MIG),
            ("memory_used_bytes", 1, _TWO_IN_ONE),
            ("process_memory_bytes", 5, (*_B, ("gpu_instance", "9"), ("pid", "7"), ("kind", "compute"))),
        )
    )
    assert set(found) == {"MIG-b7", "GPU-b9"}
    assert found["MIG-b7"].activity == 0.25
    assert (found["MIG-b7"].gpu_uuid, found["MIG-b7"].device.profile) == ("GPU-b", "1g.10gb")
    assert found["GPU-b9"].holders[7].memory_bytes == 5
    assert found["GPU-b9"].memory_ratio is None  # of how much is not told


def test_instances_of_a_gpu_that_is_lost_do_not_answer_either() -> None:
    assert not _by_uuid(_said(("up", 0, _B), ("memory_used_bytes", 1, _MIG)))["MIG-b7"].answers


def test_a_split_gpu_without_instances_is_no_device() -> None:
    assert device_usages_of([_said(("up", 1, _B), ("mig_enabled", 1, _B))]) == []


def test_a_process_whose_memory_is_not_told_has_its_share_of_time() -> None:
    process = (*_A, ("pid", "7"))
    told = _said(("process_sm_utilization_ratio", 0.5, process), ("up", 1, _A))
    hidden = tuple(sorted((*process, ("kind", "compute+graphics"))))
    missing = Missing(GPU + "process_memory_bytes", hidden, MissingReason.NOT_SUPPORTED)
    (device,) = device_usages_of([Collection(told.readings, (missing,))])
    assert (device.holders[7].memory_bytes, device.holders[7].sm_ratio) == (None, 0.5)


def test_a_second_source_adds_to_the_first_and_names_nothing_anew() -> None:
    driver = _said(
        ("up", 1, _A), ("utilization_ratio", 0.1, _A), ("memory_used_bytes", 2, _A), ("memory_total_bytes", 8, _A)
    )
    other = labels_of(gpu=3, uuid="GPU-a")  # it counts in its own way
    page = _said(
        ("up", 1, other),
        ("sm_active_ratio", 0.4, other),
        ("memory_used_bytes", 7, other),
        ("workload_info", 1, (*other, ("job", "5"))),
    )
    (found,) = device_usages_of([driver, page])
    assert (found.device.uuid, found.activity, found.memory_ratio) == ("GPU-a", 0.4, 0.25)
    assert [one["job"] for one in found.workloads] == ["5"]
