"""Which numbers of a step are exported, and what is an exporter?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from stepscope.training.steps.telemetry import StepRecord


class Exporter(Protocol):
    """Hands step metrics to one library, into what the training code has opened with it; it opens nothing itself.

    Attributes:
        package: the package that has to be installed.
        remedy: what opens it.
    """

    package: str
    remedy: str

    def look(self) -> bool:
        """On the training thread, in microseconds: whether something is open, which is remembered."""

    def export(self, records: Sequence[StepRecord]) -> None:
        """On a thread of its own, with at least one step, after `look` has found something once."""


def numbers_of(record: StepRecord) -> dict[str, float]:
    """Finite numbers of a step by name: times in ms, then its figures."""
    numbers = {"step_ms": record.duration_ns / 1e6, "data_wait_ms": record.data_wait_ns / 1e6}
    numbers |= {f"phase_{name}_ms": duration_ns / 1e6 for name, duration_ns in record.phases.items()}
    figures = {name: float(value) for name, value in record.figures.items() if math.isfinite(value)}
    return numbers | figures | {"num_anomalies": float(len(record.anomalies))}
