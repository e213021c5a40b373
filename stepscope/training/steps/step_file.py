"""Which file do the steps of this process go to, and none of another's? From which number on?"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from stepscope.core.run_layout import steps_path
from stepscope.training.run.continuation import Continuation, continuation
from stepscope.training.run.identity import Identity
from stepscope.training.run.whole_lines import InUseError
from stepscope.training.steps.telemetry import StepWriter

logger = logging.getLogger(__name__)

_turns = count()  # every rank begins equally often, so equal numbers belong together


@dataclass(frozen=True, slots=True)
class BegunSteps:
    """Where this rank's steps go, and which attempt and number they begin with."""

    run_directory: Path
    writer: StepWriter
    continuation: Continuation


def begin_steps(wanted: Path, identity: Identity, first_step: Any) -> BegunSteps:
    """Open this rank's file of steps, which goes on where an earlier attempt of the run has left it.

    A job of one process, while another has the directory wanted, takes the first free one of <name>-2, <name>-3, ...

    Args:
        wanted: the run directory.
        first_step: the number of the first step, where the caller knows it; else None.

    Raises:
        InUseError: another process has this rank's file, and ranks cannot agree on another directory.
        OSError: the file cannot be written.
        TypeError: first_step is no number of a step.
    """
    if first_step is not None and (isinstance(first_step, bool) or not isinstance(first_step, int) or first_step < 0):
        raise TypeError(f"first_step is the number of a step, at least 0, not {first_step!r:.80}")
    turn = next(_turns)
    for number in count(1):
        run_directory = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            writer = StepWriter(run_directory / steps_path(identity.rank))
        except InUseError:
            if identity.world_size > 1:
                raise
            continue
        if number > 1:
            logger.warning(
                "another process writes the run %s now, so this one is %s; give each its own profile(run=...) or"
                " STEPSCOPE_RUN",
                wanted.name,
                run_directory.name,
            )
        begins = continuation(run_directory, identity, first_step, own_lines=writer.lines_before, turn=turn)
        return BegunSteps(run_directory, writer, begins)
    raise AssertionError("count has no end")
