"""Model of a step: what it is made of, and how long it takes when a change makes a part of it shorter.

Host and device run side by side: a step takes as long as the slower of the two, and what neither explains stays. So a
change of the kernels of a job whose host is the limit gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.roofline.operator_call import Floats


class Span(NamedTuple):
    """Least and most of a time, ms; equal where it is known."""

    least: float
    most: float

    @property
    def middle(self) -> float:
        return (self.least + self.most) / 2

    @property
    def is_known(self) -> bool:
        """Whether both ends are the same to a hundredth."""
        return self.most - self.least <= 0.01 * max(self.most, 1e-9)


NO_TIME = Span(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """A step of the rank with most kernel time, by its parts, ms; a change gives another one.

    Attributes:
        base_ms: the mean useful step of the job now.
        lost_ms: recorded losses in it that no change of kernels or communication touches: data waits, checkpoints.
        host_ms: what the host needs for a step, were the device infinitely fast.
        kernels: the compute kernels of a step; None without a trace of a device.
        least_ns, most_ns: what each of them takes after the changes so far; 0 for those that are gone.
        added: what new kernels take.
        exposed_ms: communication that no compute hides.
        hidden_ms: communication that compute hides.
        outside_ms: what neither part explains now, such as gaps between kernels; it stays.
    """

    base_ms: float
    lost_ms: float
    host_ms: Span
    kernels: StepKernels | None
    least_ns: Floats
    most_ns: Floats
    added: Span = NO_TIME
    exposed_ms: Span = NO_TIME
    hidden_ms: float = 0.0
    outside_ms: Span = NO_TIME

    @property
    def compute_ms(self) -> Span:
        """The kernels one after the other."""
        return Span(
            float(self.least_ns.sum()) / 1e6 + self.added.least, float(self.most_ns.sum()) / 1e6 + self.added.most
        )

    @property
    def step_ms(self) -> Span:
        """The step after the changes so far."""
        ends = [
            self.lost_ms + outside + max(host, compute + exposed)
            for host, outside in zip(self.host_ms, reversed(self.outside_ms), strict=True)
            for compute, exposed in zip(self.compute_ms, self.exposed_ms, strict=True)
        ]
        return Span(min(ends), max(ends))

    def with_kernels(self, where: Floats, least_ns: Floats, most_ns: Floats) -> StepModel:
        """The model with other times of some kernels.

        Args:
            where: which of the kernels, as flags.
            least_ns, most_ns: of each of these.
        """
        least, most = self.least_ns.copy(), self.most_ns.copy()
        least[where], most[where] = least_ns, most_ns
        return replace(self, least_ns=least, most_ns=most)


def step_model(
    kernels: StepKernels | None,
    *,
    base_ms: float,
    compute_ms: float,
    lost_ms: float = 0.0,
    host_ms: Span | None = None,
    exposed_ms: float = 0.0,
    hidden_ms: float = 0.0,
) -> StepModel:
    """The model of a step as it is, which takes `base_ms`.

    Args:
        compute_ms: time in which at least one compute kernel runs; kernels that overlap are scaled to it.
        host_ms: None where unknown: anything up to the step.
    """
    running_ms = max(base_ms - lost_ms, 0.0)
    host = Span(0.0, running_ms) if host_ms is None else Span(*(min(end, running_ms) for end in host_ms))
    device_ms = min(compute_ms + exposed_ms, running_ms)
    scale = 1.0
    if compute_ms + exposed_ms > running_ms:  # captured kernels were slower than the mean step allows
        scale = running_ms / (compute_ms + exposed_ms)
    own_ns = np.zeros(0) if kernels is None else kernels.duration_ns * (compute_ms * 1e6 / max(kernels.total_ns, 1.0))
    own_ns = own_ns * scale
    outside = [running_ms - max(end, device_ms) for end in host]
    return StepModel(
        base_ms=base_ms,
        lost_ms=lost_ms,
        host_ms=host,
        kernels=kernels,
        least_ns=own_ns,
        most_ns=own_ns.copy(),
        exposed_ms=Span(exposed_ms * scale, exposed_ms * scale),
        hidden_ms=hidden_ms,
        outside_ms=Span(min(outside), max(outside)),
    )
