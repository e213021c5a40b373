"""Report of `agent check`: all metrics and reasons, in lines that fit the terminal."""

from __future__ import annotations

import pytest

from stepscope.agent.sources import AgentCheck, GpuCapabilities, MetricGap, SourceReport
from stepscope.cli.terminal.agent_check import agent_check_lines
from stepscope.core.metrics.readings import MissingReason, labels_of

_NAMES = tuple(f"stepscope_gpu_nvlink_errors_of_kind_{number}_total" for number in range(12))
_FOUND = AgentCheck(
    (
        SourceReport("nvml", None, "", 93, 0.1, ("GPU 0 draws 600 W, and all profiling counters are 0: " + "x " * 40,)),
        SourceReport("infiniband", MissingReason.NOT_INSTALLED, "/sys/class/infiniband: no adapter", 0, 0.1, ()),
    ),
    (
        GpuCapabilities(
            labels_of(gpu="0", uuid="GPU-1"),
            ("stepscope_gpu_power_watts",),
            (
                MetricGap(MissingReason.NOT_SUPPORTED, "", _NAMES),
                MetricGap(MissingReason.NOT_SUPPORTED, "NVML 535 has no such call", ("stepscope_gpu_fan_speed_ratio",)),
            ),
        ),
        GpuCapabilities(labels_of(gpu="1", uuid="GPU-2"), (), (MetricGap(MissingReason.TIMED_OUT, "hangs", ()),)),
    ),
)


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("20", 60), ("500", 120)])
def test_all_is_named_within_the_width(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = agent_check_lines(_FOUND)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for name in _NAMES:
        assert name.removeprefix("stepscope_") in text
    assert "not_supported: this GPU, driver or machine has no such thing gpu_nvlink_errors_of_kind_0_total," in text
    assert "not_supported: NVML 535 has no such call gpu_fan_speed_ratio" in text
    assert "GPU 1 GPU-2: 0 metrics timed_out: hangs all of its metrics" in text


def test_every_reason_has_words() -> None:
    for reason in MissingReason:
        gap = MetricGap(reason, "", ("stepscope_gpu_power_watts",))
        (line,) = agent_check_lines(AgentCheck((), (GpuCapabilities((), (), (gap,)),)))[3:4]
        assert line.startswith(f"  {reason.value}: ")
        assert not line.endswith(": ")
