"""Faults of a GPU from NVML's answers to the event: each within a minute, and none of a healthy GPU in half an hour.

The faults are those that NVIDIA's own mock of NVML can inject (k8s-test-infra, nvml-mock-ctl).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.health_source import HealthWatch
from stepscope.agent.health.samples import HealthObserver
from stepscope.agent.polling import SourceState
from stepscope.collectors.nvml import library
from stepscope.collectors.nvml.collector import NvmlCollector
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_START_NS, _SECOND = 1_700_000_000 * 10**9, 10**9
_LINKS = range(18)


class _Node:
    """A machine on the fake NVML, on a clock of its own."""

    def __init__(self, fake: FakeNvml) -> None:
        self.fake = fake
        self.seconds = 0
        self._collector = NvmlCollector(clock=lambda: float(self.seconds), wall_clock_ns=lambda: self._now_ns)
        self._observer = HealthObserver("nvml", 60.0)
        self._watch = HealthWatch(HealthThresholds())

    @property
    def _now_ns(self) -> int:
        return _START_NS + self.seconds * _SECOND

    def look(self, seconds: int) -> None:
        self.seconds += seconds
        states = [SourceState("nvml", self._collector.collect(), self._now_ns)]
        self._watch.step(self._observer.observe(states, self._now_ns), self._now_ns)

    def codes(self, gpu: str = "0") -> set[str]:
        events = self._watch.report(self._now_ns).open_events
        return {event.code for event in events if dict(event.labels).get("gpu") == gpu}


@pytest.fixture
def node(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> _Node:
    built = build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml")
    fake = FakeNvml(built, tmp_path / "nvml.conf")
    fake.write()
    monkeypatch.setenv("FAKE_NVML_CONFIG", str(fake.config))
    monkeypatch.setattr(library, "LIBRARY", str(built))
    return _Node(fake)


def _h200(index: int) -> dict[str, object]:
    """A GPU whose driver has NVLink errors of single links alone, as that of an H200."""
    totals = ("field__38", "field__45", "field__52", "field__59")
    return {
        **{key: value for key, value in profiles.h100(index).items() if key not in totals},
        **{_of_link(field, link): "c 0" for field in (161, 162, 163) for link in _LINKS},
    }


def _of_link(field: int, link: int) -> str:
    return f"field__{field}__{link}" if link else f"field__{field}"


_RATE = 50
"""Errors a second of each link that has any."""


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        ({"lost": 1}, {"gpu_lost"}),
        ({"ecc__1__0": 3}, {"ecc_uncorrected"}),
        ({"sram_secded": 4, "sram_exceeded": 1}, {"ecc_uncorrected", "sram_threshold"}),
        ({"sram_parity": 1}, {"ecc_uncorrected"}),
        ({"sram_corrected": 12}, set()),
        ({"remap_pending": 1}, {"row_remap_pending"}),
        ({"remap_failed": 1}, {"row_remap_failed"}),
        ({"remap_uncorrected": 512}, {"remapped_rows"}),
        ({"margin": 0, "temperature__0": 89}, {"temperature_margin"}),
        ({"margin": None, "temperature__0": 95}, {"temperature_margin"}),
        ({"temperature__0": -5, "margin": 94}, set()),
        ({"power_mw": 700_000, "throttle_mask": 0x4}, set()),
        ({"throttle_mask": 0x40}, {"hardware_slowdown"}),
        ({"throttle_mask": 0x80}, {"hardware_slowdown"}),
        ({"throttle_mask": 0x8}, {"hardware_slowdown"}),
        ({"pstate": 8, "clock__1": 300}, set()),
        ({"nvlink__7": 0}, {"nvlink_down"}),
        *(
            ({"fabric_health": mask, "fabric_summary": 2}, {"fabric_unhealthy"})
            for mask in (0x1A9, 0x1A6, 0x19A, 0x16A, *(wrong << 8 | 0xAA for wrong in range(2, 9)))
        ),
    ],
)
def test_a_fault_is_called_right_within_a_minute(node: _Node, fault: dict[str, object], codes: set[str]) -> None:
    for index in range(2):
        node.fake.add(_h200(index))
    node.fake.write()
    for _ in range(3):
        node.look(10)
    assert node.codes() == set()
    node.fake.set(0, **fault)
    node.fake.write()
    for _ in range(6):
        node.look(10)
    assert node.codes() == codes
    assert node.codes("1") == set()


@pytest.mark.parametrize("links", [list(_LINKS), [0], [17]])
def test_nvlink_errors_of_any_link_are_known_within_a_minute(node: _Node, links: list[int]) -> None:
    node.fake.add(_h200(0))
    node.fake.write()
    for _ in range(3):
        node.look(10)
    assert node.codes() == set()
    for step in range(1, 7):
        counts = {_of_link(field, link): f"c {_RATE * 10 * step}" for field in (161, 162, 163) for link in links}
        node.fake.set(0, **counts)
        node.fake.write()
        node.look(10)
    assert node.codes() == {"nvlink_crc_errors", "nvlink_replays", "nvlink_recoveries"}


@pytest.mark.parametrize("gpu", [_h200, profiles.h100, profiles.a100, profiles.b200])
def test_a_healthy_gpu_is_left_alone(node: _Node, gpu: Callable[[int], dict[str, object]]) -> None:
    """B200's counts of 2 recoveries and its symbol errors of the profile are of before."""
    made = gpu(0)
    made.pop(f"field__222__{2**32 - 1}", None)
    node.fake.add(made)
    node.fake.write()
    for _ in range(180):
        node.look(10)
        assert node.codes() == set()
