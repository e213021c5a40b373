"""What does a trainer's own breakdown in the same log tell? Mostly that it is not NCCL."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.health import Severity
from stepscope.core.nccl import NcclFinding
from stepscope.core.nccl_events import LogEvent, TrainerTimes

_NEEDED = ("forward", "backward", "step")
_COMMUNICATION = "backward_allreduce"


def trainer_findings(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """One finding where the optimizer's step takes longer than forward and backward together."""
    for event in events:
        if isinstance(event, TrainerTimes) and all(part in event.parts for part in _NEEDED):
            forward, backward, step = (event.parts[part] for part in _NEEDED)
            if step > forward + backward:
                communication = event.parts.get(_COMMUNICATION)
                less = f", communication {communication:,.0f}" if communication is not None else ""
                message = (
                    f"the optimizer's step takes {step:,.0f} ms, forward and backward {forward + backward:,.0f}{less}: "
                    "host-bound, an optimizer on the CPU; not NCCL"
                )
                return [NcclFinding("cpu_optimizer", Severity.WARNING, message, event.place.file, event.place.line)]
    return []
