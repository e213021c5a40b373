"""Limits of a capture: size, overhead and deadline, checked after each profiled step at no cost."""

from __future__ import annotations

import statistics
import sys

from stepscope.core.protocol.captures import CaptureRequest, EarlyStop
from stepscope.training.steps.telemetry import StepRecord

_BYTES_PER_OPERATOR = 1000.0
"""Compressed trace per operator that autograd numbers, with its children, backward, launches and kernels: 830 to 1200
in recorded DDP, FSDP and launch-bound runs on H100s and in pipelines on CPUs."""


class SizeForecast:
    """Forecast of a trace's size, corrected by every trace that this process has written."""

    def __init__(self) -> None:
        self._bytes_per_operator = _BYTES_PER_OPERATOR
        self._bytes_per_step = 0.0

    def num_bytes(self, num_operators: int, num_steps: int) -> float:
        """Size of a compressed trace; 0 while it is unknown: no autograd in the loop, and no trace yet."""
        return num_operators * self._bytes_per_operator or num_steps * self._bytes_per_step

    def learn(self, num_bytes: int, num_operators: int, num_steps: int) -> None:
        """Correct the forecast by a written trace."""
        self._bytes_per_step = num_bytes / num_steps
        if num_operators:
            self._bytes_per_operator = num_bytes / num_operators


class CaptureCosts:
    """Costs of one running capture, compared with its limits.

    Args:
        request: its limits; None has none.
        usual_ns: time of a step before it; None when unknown.

    Attributes:
        num_steps: whole steps so far.
        num_operators: operators that autograd has numbered in them.
    """

    def __init__(self, request: CaptureRequest | None, forecast: SizeForecast, usual_ns: float | None) -> None:
        self.num_steps = self.num_operators = 0
        self._request = request
        self._forecast = forecast
        self._usual_ns = usual_ns
        self._durations: list[int] = []
        self._first_operator = operators_so_far()

    def add(self, record: StepRecord) -> EarlyStop | None:
        """Count a whole step; returns why the capture should end with it, or None."""
        self.num_steps += 1
        self.num_operators = operators_so_far() - self._first_operator
        self._durations.append(record.duration_ns)
        limits, overhead = self._request, self.overhead
        if limits is None:
            return None
        if limits.deadline_unix_ns is not None and record.end_ns >= limits.deadline_unix_ns:
            return EarlyStop.DEADLINE
        if limits.max_overhead is not None and overhead is not None and overhead > limits.max_overhead:
            return EarlyStop.MAX_OVERHEAD
        with_one_more = self._forecast.num_bytes(self.num_operators, self.num_steps) * (1 + 1 / self.num_steps)
        if limits.max_bytes is not None and with_one_more > limits.max_bytes:
            return EarlyStop.MAX_BYTES
        return None

    @property
    def overhead(self) -> float | None:
        """Share by which the profiled steps are longer than those before (median of each); None when unknown."""
        if not self._durations or not self._usual_ns:
            return None
        return statistics.median(self._durations) / self._usual_ns - 1


def operators_so_far() -> int:
    """Operators that autograd has numbered on this thread; 0 in a torch without that count."""
    autograd = getattr(getattr(sys.modules.get("torch"), "_C", None), "_autograd", None)
    count = getattr(autograd, "_get_sequence_nr", None)
    return 0 if count is None else int(count())
