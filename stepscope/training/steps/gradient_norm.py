"""How large are this rank's own gradients, before other ranks' are mixed in? A sick GPU's differ from all others'."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from stepscope.training.steps.gradient_sources import GradientSource, sources_of
from stepscope.training.steps.late_figures import LateReader, Numbers
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

FIGURE = "local_grad_norm"
_HOST_SHARE = 0.001
"""Of the training thread's time that sampling may take; where it takes more, every second sample is left out."""


class LocalGradientNorm:
    """Adds `local_grad_norm` to some steps: the 2-norm of all gradients that this rank computed itself.

    Of the step's last backward pass, with what earlier ones accumulated on the parameters; a loss scale is divided out.
    All ranks sample the same steps, a slower one some of them.

    Args:
        is_quiet: whether a step is neither captured nor next to a capture; sampling would show in the trace.
    """

    def __init__(self, late_reader: LateReader, is_quiet: Callable[[int], bool]) -> None:
        self._late_reader = late_reader
        self._is_quiet = is_quiet
        self._sources: list[GradientSource] = []
        self._interval = 0
        self._norms: dict[object, Any] = {}
        self._is_sampling = False
        self._has_failed = False
        self._spent_ns = 0

    def watch(self, model: Any, every: int) -> None:
        """Sample each `every`th step of a model; several count as one. What cannot be seen costs one line."""
        try:
            if every < 1:
                raise ValueError(f"every is a number of steps, not {every}")
            self._sources += sources_of(model)
            self._interval = max(int(every), self._interval)
        except Exception as error:  # training must never be hurt, and everything else goes on
            logger.warning("prof.watch leaves this model alone: %s", error)

    def step_began(self, index: int) -> None:
        """Begin to look where the step is to be sampled."""
        if not self._sources or index == 0 or index % self._interval or self._has_failed or not self._is_quiet(index):
            return
        started_ns = time.perf_counter_ns()
        self._is_sampling = True
        try:
            for source in self._sources:
                source.watch(self._note)
        except Exception:
            self._leave()
            raise
        self._spent_ns = time.perf_counter_ns() - started_ns

    def step_ended(self, record: StepRecord) -> None:
        """Add the norm to a step that was sampled."""
        if not self._is_sampling:
            return
        started_ns = time.perf_counter_ns()
        self._leave()
        norms, self._norms = self._norms, {}
        if norms and not self._has_failed:
            self._add(list(norms.values()), record)
        self._spent_ns += time.perf_counter_ns() - started_ns
        unsampled_ns = max(record.duration_ns - self._spent_ns, 1)
        while self._spent_ns > _HOST_SHARE * self._interval * unsampled_ns:
            self._interval *= 2  # so that the sampled steps of all ranks stay among those of the fastest

    def close(self) -> None:
        """Leave the models as they were."""
        self._leave()
        self._sources.clear()

    def _leave(self) -> None:
        self._is_sampling = False
        for source in self._sources:
            source.leave()

    def _note(self, whose: object, gradient: Any) -> None:
        if self._has_failed or not self._is_sampling:
            return
        started_ns = time.perf_counter_ns()
        try:
            self._norms[whose] = _norm(gradient)
        except Exception as error:  # inside the backward pass
            self._has_failed = True
            logger.warning("stepscope goes on without local_grad_norm: %s: %s", type(error).__name__, error)
        self._spent_ns += time.perf_counter_ns() - started_ns

    def _add(self, norms: list[Any], record: StepRecord) -> None:
        torch: Any = sys.modules["torch"]
        by_device: dict[Any, list[Any]] = {}
        for norm in norms:
            by_device.setdefault(norm.device, []).append(norm.to(torch.float32))
        totals = {str(device): torch.linalg.vector_norm(torch.stack(few)) for device, few in by_device.items()}

        def unscaled(numbers: Numbers) -> Numbers:
            scale = record.figures.get("loss_scale", 1.0)  # read before this one, as its listener is told before
            return {FIGURE: math.hypot(*numbers.values()) / scale if scale else math.nan}

        if any(self._late_reader.takes(total) for total in totals.values()):
            late = self._late_reader.take(totals, unscaled)
            record.late += [] if late is None else [late]
        elif waiting := next((name for name, total in totals.items() if total.device.type != "cpu"), None):
            raise ValueError(f"gradients on {waiting} cannot be read without waiting for it")
        else:
            numbers = {name: total.item() for name, total in totals.items()}
            record.figures = unscaled(numbers) | record.figures


def _norm(gradient: Any) -> Any:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        if type(gradient) is not torch.Tensor and hasattr(gradient, "to_local"):
            gradient = gradient.to_local()  # what this rank holds of a DTensor
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        dtype = torch.float32 if gradient.dtype in {torch.float16, torch.bfloat16} else None
        return torch.linalg.vector_norm(gradient, dtype=dtype)
