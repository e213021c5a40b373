"""Duplicate readings: one value per GPU, whichever sources report it and however each names GPU and instances."""

from __future__ import annotations

from stepscope.agent.exporter.metrics_page import readings_without_duplicates
from stepscope.core.metrics.readings import GPU, Collection, Labels, Reading, labels_of

_OF_NVML = labels_of(gpu=0, uuid="GPU-a")
_INSTANCE_OF_NVML = labels_of(gpu=0, uuid="MIG-b", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")
_OF_PAGE = labels_of(gpu=3, uuid="GPU-a")  # DCGM numbers GPUs in its own way
_INSTANCE_OF_PAGE = labels_of(gpu=3, uuid="GPU-a", gpu_instance=7, mig_profile="1g.10gb")


def _told(*readings: tuple[str, Labels]) -> Collection:
    return Collection(tuple(Reading(GPU + name, 1.0, labels, 0) for name, labels in readings))


def _kept(*collections: Collection) -> list[list[tuple[str, Labels]]]:
    return [
        [(reading.metric.removeprefix(GPU), reading.labels) for reading in readings]
        for readings, _ in readings_without_duplicates(collections)
    ]


def test_what_a_gpu_is_and_whether_it_answers_is_told_by_the_first_alone() -> None:
    """Else `* on (uuid) group_left (name) stepscope_gpu_info` finds two of each GPU, and Prometheus refuses it."""
    nvml = _told(
        ("up", (*_OF_NVML, ("reason", "timed_out"))),
        ("info", labels_of(gpu=0, uuid="GPU-a", name="NVIDIA H100", vbios="96")),
    )
    page = _told(("up", _OF_PAGE), ("info", labels_of(gpu=3, uuid="GPU-a", name="NVIDIA H100", vbios="")))
    assert _kept(nvml, page)[1] == []
    assert [num_doubles for _, num_doubles in readings_without_duplicates((nvml, page))] == [0, 2]


def test_a_mig_instance_is_not_counted_twice() -> None:
    nvml = _told(("up", _OF_NVML), ("memory_used_bytes", _OF_NVML), ("memory_used_bytes", _INSTANCE_OF_NVML))
    page = _told(
        ("up", _OF_PAGE),
        ("memory_used_bytes", _INSTANCE_OF_PAGE),
        ("memory_used_bytes", labels_of(gpu=3, uuid="GPU-a", gpu_instance=8)),
        ("sm_active_ratio", _INSTANCE_OF_PAGE),
    )
    assert _kept(nvml, page)[1] == [
        ("memory_used_bytes", labels_of(gpu=3, uuid="GPU-a", gpu_instance=8)),
        ("sm_active_ratio", _INSTANCE_OF_PAGE),
    ]


def test_series_of_one_gpu_that_differ_in_more_are_all_there() -> None:
    links = [("nvlink_up", (*_OF_NVML, ("link", str(link)))) for link in range(2)]
    page = _told(("up", _OF_PAGE), ("nvlink_up", labels_of(gpu=3, uuid="GPU-a", link=1)), ("xid_last", _OF_PAGE))
    assert _kept(_told(("up", _OF_NVML), *links), page) == [
        [("up", _OF_NVML), *links],
        [("xid_last", _OF_PAGE)],
    ]


def test_one_source_of_gpus_is_told_as_it_is() -> None:
    nvml, host = _told(("up", _OF_NVML), ("up", _OF_NVML)), _told(("job_info", _OF_NVML))
    assert readings_without_duplicates((nvml, host)) == [(nvml.readings, 0), (host.readings, 0)]
