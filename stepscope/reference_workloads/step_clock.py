"""How long did each step of a rank take?"""

from __future__ import annotations

import time

import torch


class StepClock:
    """Times steps by the device, whose events are read when training is over: asking earlier would make the host wait.

    What happens between `end` and `begin`, as writing a trace, is in no step. On CPU it is the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._marks: list[tuple[torch.cuda.Event | float, torch.cuda.Event | float]] = []
        self.begin()

    def begin(self) -> None:
        """The next step begins."""
        self._started = self._mark()

    def end(self) -> None:
        """A step has ended."""
        self._marks.append((self._started, self._mark()))

    def seconds(self) -> list[float]:
        """Of each step that has ended; waits for the device."""
        if self._on_device:
            torch.cuda.synchronize()
        return [_seconds_between(*marks) for marks in self._marks]

    def _mark(self) -> torch.cuda.Event | float:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
        event.record()
        return event


def _seconds_between(first: torch.cuda.Event | float, last: torch.cuda.Event | float) -> float:
    if isinstance(first, float) or isinstance(last, float):
        assert isinstance(first, float)
        assert isinstance(last, float)
        return last - first
    milliseconds: float = first.elapsed_time(last)
    return milliseconds / 1e3
