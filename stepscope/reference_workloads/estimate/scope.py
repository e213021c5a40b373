"""Which workloads does the estimate not know yet? A figure of another layout would be worse than none."""

from __future__ import annotations

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.presets import Preset

KNOWN_SCHEDULES = ("gpipe", "1f1b", "looped-bfs", "interleaved", "zero-bubble")


def refuse_unknown(plan: ParallelPlan, preset: Preset) -> None:
    """Raises UsageError, with the name of what is not modelled."""
    unknown = [
        option.replace("_", " ")
        for option in ("sequence_parallel", "loss_parallel", "cpu_offload")
        if getattr(plan, option)
    ]
    if preset.image is not None:
        unknown.append("a model of images, whose memory lies in its activations")
    if plan.pp > 1 and plan.schedule not in KNOWN_SCHEDULES:
        unknown.append(f"the {plan.schedule} schedule")
    if unknown:
        raise UsageError(
            f"no estimate knows {' and '.join(unknown)}", what_next="plan without it, or run it and measure"
        )
