"""Which file do the steps of this process go to, and none of another's?"""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

from stepscope.core.run_layout import steps_path
from stepscope.training.run.identity import Identity
from stepscope.training.run.whole_lines import InUseError
from stepscope.training.steps.telemetry import StepWriter

logger = logging.getLogger(__name__)


def begin_steps(wanted: Path, identity: Identity) -> tuple[Path, StepWriter]:
    """The run directory and the writer of this rank's steps.

    A job of one process, while another has the directory wanted, takes the first free one of <name>-2, <name>-3, ...

    Raises:
        InUseError: another process has this rank's file, and ranks cannot agree on another directory.
        OSError: the file cannot be written.
    """
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
        return run_directory, writer
    raise AssertionError("count has no end")
