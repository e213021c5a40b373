"""Who watches the steps of a run, beside the file that each step is written to?"""

from __future__ import annotations

from stepscope.training.gc_pauses import GcPauses
from stepscope.training.late_figures import LateReader
from stepscope.training.listeners import StepListener
from stepscope.training.loss_scale import LossScale
from stepscope.training.memory_figures import MemoryFigures
from stepscope.training.settings import RunContext


def listeners_of(_: RunContext, late_reader: LateReader) -> list[StepListener]:
    """Those that the settings and the surroundings of the run call for, in the order in which they are told."""
    return [GcPauses(), MemoryFigures(), LossScale(late_reader)]
