"""Who watches the steps of a run, beside the file that each step is written to?"""

from __future__ import annotations

import math
import os

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


def listeners_of(context: RunContext, late_reader: LateReader) -> list[StepListener]:
    """Those that the settings and the surroundings of the run call for, in the order in which they are told."""
    listeners: list[StepListener] = [GcPauses(), MemoryFigures(), LossScale(late_reader), ClippedNorm(late_reader)]
    stuck_seconds = given_seconds(os.environ.get("STEPSCOPE_STUCK_AFTER") or context.settings.stuck_after)
    if stuck_seconds != math.inf:
        listeners.append(StuckSteps(context, stuck_seconds))
    plan = memory_plan(os.environ.get("STEPSCOPE_MEMORY") or context.settings.memory)
    if plan.every is not None:
        listeners.append(MemorySnapshots(context, plan.every, context.owners))
    if plan.when_out:
        listeners.append(OutOfMemoryEvidence(context, plan, context.owners))
    return listeners


def settled_listeners_of(context: RunContext) -> list[SettledListener]:
    """Those that look at a step once all its figures are there, in the order in which they are told."""
    listeners: list[SettledListener] = [AnomalyWatch(context.identity.rank)]
    rank = context.identity.rank
    exporters = chosen_exporters(context.settings.export, context.run_directory.name, rank)
    if exporters:
        listeners.append(StepExport(exporters, says_what_is_missing=rank == 0))
    return listeners
