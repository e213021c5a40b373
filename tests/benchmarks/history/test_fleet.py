"""The resampled fleet has the values of its recording, and each GPU its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.history.fleet import METRICS, START_NS, Fleet


def recording(folder: Path) -> Path:
    """A recording of two GPUs at 5 Hz, half a minute long."""
    columns = [about.column for about in METRICS.values()]
    lines = [",".join(["t", "gpu", *columns])]
    for sample in range(150):
        for gpu in range(2):
            lines.append(",".join([str(sample / 5), str(gpu), *[str(100 + gpu) for _ in columns]]))
    path = folder / "samples.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_fleet_plays_its_recording(tmp_path: Path) -> None:
    path = recording(tmp_path)
    times, scrapes = zip(*Fleet(path, 6, step_seconds=60).scrapes(2), strict=True)
    assert times[0] == START_NS + 60 * 10**9
    assert len(times) == 120
    clock = np.array([scrape["stepscope_gpu_sm_clock_hertz"] for scrape in scrapes])
    assert set(np.unique(clock[:, ::2])) == {105e6}  # to the resolution of 15 MHz
    power = np.array([scrape["stepscope_gpu_power_watts"] for scrape in scrapes])
    assert abs(power[:, 0::2].mean() - 100) < 0.5
    assert abs(power[:, 1::2].mean() - 101) < 0.5
    assert len(np.unique(power)) > 600  # noise of its own
    assert np.allclose(np.round(power, 3), power)
    again = [scrape["stepscope_gpu_power_watts"] for _, scrape in Fleet(path, 6, step_seconds=60).scrapes(2)]
    assert np.array_equal(again, power)
