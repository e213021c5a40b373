"""Model of a step: what it is made of, and how long it takes when a change makes a part of it shorter.

Host and device run side by side: a step takes as long as the slower of the two, and what neither explains stays. So a
change of the kernels of a job whose host is the limit gains nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.headroom.rates import KernelRates
from stepscope.analyzer.headroom.step_kernels import Flags, StepKernels
from stepscope.analyzer.roofline.operator_call import Floats
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS
from stepscope.core.vocabulary import Change


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


BACKWARD_SHARE = 2 / 3
"""Share of compute that is the backward pass, beside which gradients are reduced."""

NO_TIME = Span(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """A step of the rank with most kernel time, by its parts, ms; a change gives another one.

    Attributes:
        base_ms: the mean useful step of the job now.
        lost_ms: recorded losses in it that no change of kernels or communication touches: data waits, checkpoints.
        host_ms: what the host needs for a step, were the device infinitely fast.
        spares_host: whether a kernel that is gone spares the host its launch. Where the host is the limit, fewer
            launches are the fix of the verdict, and no headroom.
        kernels: the compute kernels of a step; None without a trace of a device.
        rates: times of other kernels on this GPU; None where it is unknown.
        least_ns, most_ns: what each kernel takes after the changes so far, with the gap to the next; 0 if it is gone.
        added: what new kernels take, ms.
        exposed_ms: communication that no compute hides.
        hidden_ms: communication that compute hides now; what shorter compute can no longer hide is exposed.
        hides: share of the time of compute in which communication can run beside it.
        outside_ms: what the device's part takes longer now, such as gaps between kernels; it stays.
        replaced: which kernels stand for others, that a change put in their place.
        done: the changes so far.
    """

    base_ms: float
    lost_ms: float
    host_ms: Span
    spares_host: bool
    kernels: StepKernels | None
    rates: KernelRates | None
    least_ns: Floats
    most_ns: Floats
    replaced: Flags
    added: Span = NO_TIME
    exposed_ms: Span = NO_TIME
    hidden_ms: float = 0.0
    hides: float = 0.0
    outside_ms: Span = NO_TIME
    done: frozenset[Change] = frozenset()

    @property
    def compute_ms(self) -> Span:
        """The kernels one after the other."""
        return Span(
            float(self.least_ns.sum()) / 1e6 + self.added.least, float(self.most_ns.sum()) / 1e6 + self.added.most
        )

    @property
    def is_there(self) -> Flags:
        """Whether each kernel still runs."""
        return self.most_ns > 0

    @property
    def step_ms(self) -> Span:
        """The step after the changes so far."""
        ends = [
            self.lost_ms + max(self._kept * host, compute + exposed + self._uncovered_ms(compute) + outside)
            for host in self.host_ms
            for compute, exposed, outside in zip(self.compute_ms, self.exposed_ms, self.outside_ms, strict=True)
        ]
        return Span(min(ends), max(ends))

    @property
    def likely_ms(self) -> float:
        """The step after the changes so far, each part in the middle of what is known of it."""
        compute_ms = self.compute_ms.middle
        device_ms = compute_ms + self.exposed_ms.middle + self._uncovered_ms(compute_ms) + self.outside_ms.middle
        return self.lost_ms + max(self._kept * self.host_ms.middle, device_ms)

    def _uncovered_ms(self, compute_ms: float) -> float:
        """Communication that is hidden now and would not be beside so little compute."""
        return max(self.hidden_ms - self.hides * compute_ms, 0.0)

    @property
    def _kept(self) -> float:
        """Share of the launches that the host still makes."""
        return float(np.mean(self.most_ns > 0)) if self.spares_host and len(self.most_ns) else 1.0

    def after(
        self, change: Change, new: Mapping[int, Span], *, added: Span = NO_TIME, others: Collection[int] = ()
    ) -> StepModel:
        """The model after a change.

        Args:
            new: by position of a kernel, what it then takes, ns.
            added: what kernels that it adds take, ms.
            others: positions of kernels that become kernels of another kind.
        """
        least, most, replaced = self.least_ns.copy(), self.most_ns.copy(), self.replaced.copy()
        for at, span in new.items():
            least[at], most[at] = span
        replaced[list(others)] = True
        total = Span(self.added.least + added.least, self.added.most + added.most)
        done = self.done | {change}
        return replace(self, least_ns=least, most_ns=most, replaced=replaced, added=total, done=done)


def step_model(
    kernels: StepKernels | None,
    rates: KernelRates | None,
    *,
    base_ms: float,
    compute_ms: float,
    lost_ms: float = 0.0,
    host_ms: Span | None = None,
    spares_host: bool = True,
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
    scale = device_ms / (compute_ms + exposed_ms) if compute_ms + exposed_ms > 0 else 1.0
    shown_ms = scale * compute_ms
    own_ns = np.zeros(0) if kernels is None else kernels.duration_ns + BETWEEN_KERNELS_NS
    own_ns = own_ns * (shown_ms * 1e6 / max(float(own_ns.sum()), 1.0))
    return StepModel(
        base_ms=base_ms,
        lost_ms=lost_ms,
        host_ms=host,
        spares_host=spares_host and shown_ms > 0,
        kernels=kernels,
        rates=rates,
        least_ns=own_ns,
        most_ns=own_ns.copy(),
        replaced=np.zeros(len(own_ns), np.bool_),
        exposed_ms=Span(exposed_ms * scale, exposed_ms * scale),
        hidden_ms=hidden_ms if shown_ms > 0 else 0.0,
        hides=max(BACKWARD_SHARE, hidden_ms / shown_ms) if shown_ms > 0 else 0.0,
        outside_ms=NO_TIME if host.least >= running_ms else Span(running_ms - device_ms, running_ms - device_ms),
    )
