"""Samples of a fleet, resampled from a recording of two GPUs.

Recorded: NVML and GPM at 5 Hz (`nvml_gpm_samples_5hz.csv`; columns as NVML names them). Each GPU of the fleet plays
blocks of 1 to 10 minutes from random places of it, one recorded row of every 25: 5 s apart as its samples are. Values
that vary in the recording have a relative noise on top, which each GPU draws for itself, at the resolution of the
recording; so no two GPUs read the same, and no block reads the same twice.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Labels

_GPU = "stepscope_gpu_"
_RECORDED_HZ = 5
START_NS = 1_795_813_200 * 10**9
"""A full hour."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Attributes: column; its resolution; noise, relative (standard deviation); scale of our unit."""

    column: str
    resolution: float
    noise: float
    scale: float = 1.0


METRICS: Mapping[str, _Recorded] = {
    _GPU + "utilization_ratio": _Recorded("gpu_util", 1, 0.02, 0.01),
    _GPU + "memory_bandwidth_busy_ratio": _Recorded("mem_util", 1, 0.02, 0.01),
    _GPU + "power_watts": _Recorded("power_w", 0.001, 0.005),
    _GPU + "sm_clock_hertz": _Recorded("sm_clock", 15, 0.0, 1e6),
    _GPU + "temperature_celsius": _Recorded("temp", 1, 0.01),
    _GPU + "memory_used_bytes": _Recorded("mem_used", 1, 0.0),
    _GPU + "tensor_active_ratio": _Recorded("ANY_TENSOR_UTIL", 0.001, 0.02),
    _GPU + "dram_active_ratio": _Recorded("DRAM_BW_UTIL", 0.001, 0.02),
    _GPU + "sm_active_ratio": _Recorded("SM_UTIL", 0.001, 0.02),
    _GPU + "pcie_receive_bytes_per_second": _Recorded("PCIE_RX_PER_SEC", 0.001, 0.05, 1e6),
}


def gpu_labels(num_gpus: int) -> tuple[Labels, ...]:
    """Labels of each GPU, eight a node, sixteen nodes a rack."""
    return tuple(
        (
            ("gpu", str(place % 8)),
            ("instance", f"node{place // 8:04d}.cluster.example:9400"),
            ("rack", f"r{place // 128:02d}"),
            ("uuid", f"GPU-{place:08x}-9f3a-4c1d-8e2b-{place * 2654435761 % 2**48:012x}"),
        )
        for place in range(num_gpus)
    )


class Fleet:
    """Samples of many GPUs.

    Args:
        recording: path of the CSV file.
        step_seconds: between samples.
    """

    def __init__(self, recording: Path, num_gpus: int = 1000, *, step_seconds: int = 5, seed: int = 0) -> None:
        with recording.open(newline="") as file:
            rows = list(csv.DictReader(file))
        self._recorded = [
            {
                name: np.array([float(row[about.column]) for row in rows if row["gpu"] == gpu])
                for name, about in METRICS.items()
            }
            for gpu in sorted({row["gpu"] for row in rows})
        ]
        self.entities = gpu_labels(num_gpus)
        self.step_seconds = step_seconds
        self._random = np.random.default_rng(seed)
        self._place = np.zeros(num_gpus, np.int64)
        self._left = np.zeros(num_gpus, np.int64)

    def hour(self) -> dict[str, NDArray[np.float64]]:
        """Values of each metric in the next hour; shape (samples, GPUs)."""
        num_samples, num_gpus = 3600 // self.step_seconds, len(self.entities)
        length = min(len(next(iter(recorded.values()))) for recorded in self._recorded)
        places = np.empty((num_samples, num_gpus), np.int64)
        for sample in range(num_samples):
            fresh = self._left == 0
            self._place[fresh] = self._random.integers(length, size=int(fresh.sum()))
            self._left[fresh] = self._random.integers(12, 121, size=int(fresh.sum()))
            places[sample] = self._place
            self._place = (self._place + _RECORDED_HZ * self.step_seconds) % length
            self._left -= 1
        answer = {}
        for name, about in METRICS.items():
            values = np.empty((num_samples, num_gpus))
            for which, recorded in enumerate(self._recorded):
                values[:, which :: len(self._recorded)] = recorded[name][places[:, which :: len(self._recorded)]]
            if about.noise:
                values *= 1 + about.noise * self._random.standard_normal(values.shape)
            answer[name] = np.round(np.round(values / about.resolution) * about.resolution, 3) * about.scale
        return answer

    def scrapes(self, num_hours: int) -> Iterator[tuple[int, dict[str, NDArray[np.float64]]]]:
        """Time (ns since the epoch) and values of each scrape of all GPUs, in `num_hours` hours from START_NS."""
        time_ns = START_NS
        for _ in range(num_hours):
            hour = self.hour()
            for sample in range(3600 // self.step_seconds):
                time_ns += self.step_seconds * 10**9
                yield time_ns, {name: np.ascontiguousarray(values[sample]) for name, values in hour.items()}
