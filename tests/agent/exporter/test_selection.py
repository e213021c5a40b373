"""Selection of exported metrics: at most 400 series for 8 GPUs by default, with all that boards and rules use."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.exporter.exposition import CATALOGUE
from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.exporter.selection import selected_series
from stepscope.agent.fleet import history
from stepscope.agent.fleet.fleet_source import FleetSource
from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.health.health_source import HealthSource
from stepscope.agent.polling import SourceState
from stepscope.agent.service import Agent
from stepscope.collectors.host.collector import HostCollector
from stepscope.core.documents.jobs import Assignment, Job, JobKind
from stepscope.core.errors import UsageError
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics import DefaultSeries
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Collection, Labels, Reading, labels_of, with_labels
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.deploy.conftest import DEPLOY

_SECOND = 10**9
_MAX_SERIES = 400
_OF_THE_FLEET_CLASS = {
    *history._NAMES,
    *(GPU + name for name in ("info", "throttle_reason", "processes", "nvlink_links")),
}
"""Without the byte counters, which stand in for rates that a GPU without profiling counters lacks."""
_OF_TOP = {
    *("utilization_ratio", "tensor_active_ratio", "dram_active_ratio", "power_watts", "power_limit_watts"),
    *("memory_used_bytes", "memory_total_bytes", "temperature_celsius", "sm_clock_hertz", "throttle_reason"),
    *("up", "info", "health", "health_event", "class", "class_confidence_ratio", "time_ratio", "job_info", "use_state"),
}


def _default() -> Mapping[str, DefaultSeries]:
    return selected_series(("default",), CATALOGUE.values())


def _used_by() -> Iterator[tuple[str, str]]:
    """Places and the metrics that they use."""
    docs = DEPLOY.parent / "docs"
    for file in (*DEPLOY.glob("grafana/*.json"), *DEPLOY.glob("prometheus/*.yml"), *DEPLOY.glob("**/*prometheusrule*")):
        text = file.read_text()
        for prefix in ("gpu", "host"):
            text += text.replace("stepscope_(gpu|host)_", f"stepscope_{prefix}_")
        yield file.name, text
    for file in docs.rglob("*.md"):
        for block in re.findall(r"^```.*?^```", file.read_text(), flags=re.MULTILINE | re.DOTALL):
            yield file.name, block
    yield "top and status", " ".join(GPU + name for name in _OF_TOP)
    yield "fleet class", " ".join(_OF_THE_FLEET_CLASS)


def test_what_boards_rules_examples_and_fleet_class_use_is_exported_by_default() -> None:
    exported = {name for name, series in _default().items() if series is not DefaultSeries.NONE}
    used = {
        (place, name)
        for place, text in _used_by()
        for name in re.findall(r"\bstepscope_[a-z0-9_]+\b(?![(:])", text)
        if name in CATALOGUE
    }
    assert len({name for _, name in used}) > 50
    assert sorted((place, name) for place, name in used if name not in exported) == []


@pytest.mark.parametrize(
    ("entries", "selected"),
    [
        (("default",), {"up": "all", "class": "nonzero", "nvlink_up": "none"}),
        (("full",), {"up": "all", "class": "all", "nvlink_up": "all"}),
        (("stepscope_gpu_nvlink_*",), {"up": "none", "class": "none", "nvlink_up": "all"}),
        (("default", "stepscope_gpu_class"), {"up": "all", "class": "all", "nvlink_up": "none"}),
    ],
)
def test_words_names_and_patterns_add_up(entries: tuple[str, ...], selected: dict[str, str]) -> None:
    found = selected_series(entries, CATALOGUE.values())
    assert found.keys() == CATALOGUE.keys()
    assert {name: str(found[GPU + name]) for name in selected} == selected


def test_what_selects_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'^unknown metric "stepscope_gpu_power_wats"; did you mean "stepscope_gpu_po'):
        selected_series(("stepscope_gpu_power_wats",), CATALOGUE.values())
    file = tmp_path / "agent.toml"
    file.write_text('[exporter]\nmetrics = ["default", "dcgm_*"]\n')
    with pytest.raises(UsageError, match=r'agent\.toml: exporter\.metrics: unknown metric "dcgm_\*"'):
        Agent(load_configuration(file))


def test_one_word_is_enough_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[exporter]\nmetrics = "full"\n')
    assert load_configuration(file).settings.exporter.metrics == ("full",)


def test_8_busy_gpus_of_one_job_have_at_most_400_series(machine: FakeNvml) -> None:
    for index in range(8):
        machine.add(profiles.h100(index))
    machine.write()
    gpus = _read(machine)
    states = (*_states(gpus), SourceState("host", HostCollector().collect(), time.time_ns(), 0.1, age_seconds=0.1))
    names = ("kernel_log", "infiniband", "training", "hangs", "nccl_ras", "kineto")
    states += tuple(SourceState(name, Collection(), time.time_ns(), 0.1, age_seconds=0.1) for name in names)
    default = MetricsPage(lambda: states, selection=_default()).encoded()[0].decode()
    full = MetricsPage(lambda: states).encoded()[0].decode()
    assert _MAX_SERIES - 60 < len(_series(default)) <= _MAX_SERIES
    assert _series(default) < _series(full)
    assert len(_series(full)) > 1_000
    assert 'stepscope_gpu_health{gpu="7",state="healthy",' in default
    assert 'state="failed"' not in default
    assert 'state="failed"' in full


def _series(page: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}


def _read(machine: FakeNvml) -> Collection:
    timing = ProbeTiming(interval=0.1, slow_poll=0.2, start_deadline=20)
    with GpuProbes(timing, environment=machine.environment()) as probes:
        end = time.monotonic() + 40
        while time.monotonic() < end:
            found = probes.snapshot().collection
            if sum(one.metric == GPU + "sm_active_ratio" for one in found.readings) == 8:
                return found
            time.sleep(0.05)
    raise AssertionError("the GPUs were never read")


def _states(gpus: Collection) -> tuple[SourceState, ...]:
    """GPUs, health, fleet class and job, as if the GPUs had been read for half a minute."""
    of_gpus = [one.labels for one in gpus.readings if one.metric == GPU + "power_watts"]
    job = Job(JobKind.SLURM, "42", "llama")
    owners = [Assignment(job, device_in(dict(labels))) for labels in of_gpus]
    begin_ns = time.time_ns() - 30 * _SECOND
    now = _state(gpus, begin_ns)
    fleet = FleetSource(lambda: (now,), lambda: owners, wall_clock_ns=lambda: now.collected_ns or 0)
    for second in range(30):
        now = _state(gpus, begin_ns + second * _SECOND)
        classes = fleet.collect()
    health = HealthSource(lambda: (now,), "nvml")
    derived = {"health": health.collect(), "fleet_class": classes, "jobs": _of_job(of_gpus)}
    return (now, *(SourceState(name, one, now.collected_ns, 0.1, age_seconds=0.1) for name, one in derived.items()))


def _state(gpus: Collection, now_ns: int) -> SourceState:
    readings = tuple(Reading(one.metric, one.value, one.labels, now_ns) for one in gpus.readings)
    return SourceState("nvml", replace(gpus, readings=readings), now_ns, 0.1, age_seconds=0.1)


def _of_job(of_gpus: list[Labels]) -> Collection:
    key = labels_of(job_kind="slurm", job_id=42)
    found = [
        (JOB + "info", with_labels(key, job_name="llama")),
        (JOB + "gpu_seconds_total", with_labels(key, state="busy")),
    ]
    for labels in of_gpus:
        found.append((GPU + "job_info", with_labels(labels, job_kind="slurm", job_id=42, source="process")))
        found.append((GPU + "use_state", with_labels(labels, state="busy")))
        found.append((GPU + "processes", with_labels(labels, kind="compute")))
    return Collection(tuple(Reading(metric, 1.0, labels, 0) for metric, labels in found))
