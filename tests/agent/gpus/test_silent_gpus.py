"""Silent GPUs: reported as hanging since when, with their values withdrawn."""

from __future__ import annotations

from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.gpus.gpu_source import SilentGpus
from stepscope.agent.gpus.targets import ProbeCounts, ProbeSnapshot, ProbeTarget
from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.readings import GPU, Collection, Missing, MissingReason, Reading, labels_of, with_labels

_SECOND = 10**9
_NOW = 101 * _SECOND
_GPU, _OTHER = labels_of(gpu=1, uuid="GPU-1"), labels_of(gpu=0, uuid="GPU-0")
_INSTANCE = labels_of(gpu=1, uuid="MIG-1", gpu_instance=7)
_FACTS = Reading(GPU + "info", 1.0, with_labels(_GPU, serial="1654922007"), 95 * _SECOND)
_VALUES = (
    Reading(GPU + "power_watts", 70.0, _GPU, 99 * _SECOND),
    Reading(GPU + "throttle_reason", 1.0, with_labels(_GPU, reason="idle"), 99 * _SECOND),
    Reading(GPU + "memory_used_bytes", 5.0, _INSTANCE, 99 * _SECOND),
)
_XID = Reading(GPU + "xid_errors_total", 1.0, with_labels(_GPU, xid="79"), 99 * _SECOND)
_POWER_OF_OTHER = Reading(GPU + "power_watts", 80.0, _OTHER, 99 * _SECOND)


def snapshot(*readings: Reading, reason: MissingReason | None) -> ProbeSnapshot:
    targets = (
        ProbeTarget(device_in(dict(_OTHER)), None, "", 100 * _SECOND, 0.1, is_apart=False),
        ProbeTarget(device_in(dict(_GPU)), reason, "", 100 * _SECOND, 0.1, is_apart=False),
    )
    return ProbeSnapshot(Collection((_POWER_OF_OTHER, _XID, *readings)), targets, ProbeCounts())


def test_facts_stay_with_the_time_of_the_last_answer_and_old_values_are_missing() -> None:
    gpus, hangs = SilentGpus(), MissingReason.TIMED_OUT
    assert gpus.observe(snapshot(_FACTS, *_VALUES, reason=None), _NOW) == Collection()
    assert gpus.observe(snapshot(_FACTS, *_VALUES, reason=hangs), _NOW) == Collection(), "they are told for a minute"
    for _ in range(2):
        told = gpus.observe(snapshot(reason=hangs), _NOW)
        assert told.readings == (Reading(GPU + "info", 1.0, _FACTS.labels, 100 * _SECOND),)
        assert told.missing == (
            Missing(GPU + "memory_used_bytes", _INSTANCE, hangs),
            Missing(GPU + "power_watts", _GPU, hangs),
            Missing(GPU + "throttle_reason", _GPU, hangs),
        )
    assert gpus.observe(snapshot(_FACTS, *_VALUES, reason=None), _NOW) == Collection()


def test_of_a_gpu_that_is_gone_at_once_is_known_what_it_told_before() -> None:
    gpus = SilentGpus()
    gpus.observe(snapshot(_FACTS, *_VALUES, reason=None), _NOW)
    told = gpus.observe(snapshot(reason=MissingReason.GONE), _NOW)
    assert [dict(reading.labels)["serial"] for reading in told.readings] == ["1654922007"]
    assert {one.reason for one in told.missing} == {MissingReason.GONE}


def test_where_the_whole_driver_hangs_nobody_says_so_of_its_gpus() -> None:
    gpus = SilentGpus()
    gpus.observe(snapshot(_FACTS, *_VALUES, reason=None), _NOW)
    gpus.observe(snapshot(_FACTS, *_VALUES, reason=None), _NOW + 15 * _SECOND)
    gpus.observe(snapshot(*_VALUES, reason=None), _NOW + 55 * _SECOND)  # what is read seldom is dropped first
    told = gpus.observe(snapshot(reason=None), _NOW + 60 * _SECOND)
    assert [dict(reading.labels)["serial"] for reading in told.readings] == ["1654922007"]
    assert {(one.labels, one.reason) for one in told.missing} == {
        (labels, MissingReason.TIMED_OUT) for labels in (_GPU, _INSTANCE)
    }


def test_the_page_tells_the_age_of_a_gpu_for_as_long_as_it_hangs() -> None:
    gpus = SilentGpus()
    gpus.observe(snapshot(_FACTS, *_VALUES, reason=None), _NOW)
    told = gpus.observe(snapshot(reason=MissingReason.TIMED_OUT), _NOW)
    beside = Reading(GPU + "use_state", 1.0, with_labels(_GPU, state="unknown"), 400 * _SECOND)
    states = (
        SourceState("nvml", told, 400 * _SECOND, 0.1, age_seconds=0.0),
        SourceState("jobs", Collection((beside,)), 400 * _SECOND, 0.1, age_seconds=0.0),
    )
    page = MetricsPage(lambda: states, wall_clock_ns=lambda: 400 * _SECOND).encoded()[0].decode()
    ages = [line for line in page.splitlines() if line.startswith("stepscope_agent_sample_age_seconds{")]
    assert ages == ['stepscope_agent_sample_age_seconds{collector="nvml",gpu="1",uuid="GPU-1"} 300.0']
    assert 'serial="1654922007"' in page
    assert 'metric="stepscope_gpu_power_watts",reason="timed_out"} 1.0' in page
