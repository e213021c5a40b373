"""Who watches the steps of a run, beside the file that each step is written to?"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from stepscope.training.anomalies.anomaly_watch import AnomalyWatch
from stepscope.training.exporters.chosen import chosen_exporters
from stepscope.training.exporters.export import StepExport
from stepscope.training.memory.memory_plan import memory_plan
from stepscope.training.memory.memory_snapshots import MemorySnapshots
from stepscope.training.memory.out_of_memory import OutOfMemoryEvidence
from stepscope.training.settings import RunContext
from stepscope.training.steps.clipped_norm import ClippedNorm
from stepscope.training.steps.gc_pauses import GcPauses
from stepscope.training.steps.late_figures import LateReader
from stepscope.training.steps.listeners import SettledListener, StepListener
from stepscope.training.steps.loss_scale import LossScale
from stepscope.training.steps.memory_figures import MemoryFigures
from stepscope.training.trouble.patience import given_seconds
from stepscope.training.trouble.watchdog import StuckSteps

logger = logging.getLogger(__name__)

T = TypeVar("T")


def listeners_of(context: RunContext, late_reader: LateReader) -> list[StepListener]:
    """Those that the settings and the surroundings of the run call for, in the order in which they are told.

    Raises:
        ValueError: a setting is none of its values.
    """
    settings = context.settings
    makers: dict[str, Callable[[], StepListener]] = {
        "garbage collector's pauses": GcPauses,
        "memory figures": MemoryFigures,
        "loss scale": lambda: LossScale(late_reader),
        "norm of clipped gradients": lambda: ClippedNorm(late_reader),
    }
    stuck_seconds = given_seconds(_chosen(settings.stuck_after, "STEPSCOPE_STUCK_AFTER", "auto"))
    if stuck_seconds != math.inf:
        makers["watch for stuck steps"] = lambda: StuckSteps(context, stuck_seconds)
    plan = memory_plan(_chosen(settings.memory, "STEPSCOPE_MEMORY", "oom"))
    if (every := plan.every) is not None:
        makers["memory snapshots"] = lambda: MemorySnapshots(context, every, context.owners)
    if plan.when_out:
        makers["watch for memory that runs out"] = lambda: OutOfMemoryEvidence(context, plan, context.owners)
    return _made(makers)


def settled_listeners_of(context: RunContext) -> list[SettledListener]:
    """Those that look at a step once all its figures are there, in the order in which they are told."""
    rank = context.identity.rank
    makers: dict[str, Callable[[], SettledListener]] = {"anomalies": lambda: AnomalyWatch(rank)}
    exporters = chosen_exporters(context.settings.export, context.run_directory.name, rank)
    if exporters:
        makers["export"] = lambda: StepExport(exporters, says_what_is_missing=rank == 0)
    return _made(makers)


def _chosen(given: T | None, variable: str, default: T | str) -> T | str:
    """What the call says comes before the environment."""
    return given if given is not None else os.environ.get(variable) or default


def _made(makers: Mapping[str, Callable[[], T]]) -> list[T]:
    """One that cannot be made, as where torch lacks what it looks at, costs one line and none of the others."""
    made: list[T] = []
    for name, make in makers.items():
        try:
            made.append(make())
        except Exception as error:  # training must never be hurt
            logger.warning("stepscope measures without its %s: %s: %s", name, type(error).__name__, error)
    return made
