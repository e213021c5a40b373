"""What does a run say when it is over? Rank 0 analyses its latest capture, once the other ranks have written theirs."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from stepscope.core.analysis import Analysis
from stepscope.core.errors import StepscopeError
from stepscope.core.run_layout import trace_path
from stepscope.core.verdict_lines import headline, verdict_lines

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60.0
"""Ranks end their loops within a step of each other; the slowest disk takes some seconds for a trace."""
_LOOK_AGAIN_SECONDS = 0.1


def analyse_run(run_directory: Path, first_step: int, ranks: list[int], attempt: int) -> Analysis | str:
    """The analysis of the latest capture, kept beside the run; what went wrong in one line where there is none.

    Args:
        first_step: of the latest capture.
        ranks: whose traces to wait for; those that do not come are named in the analysis.
    """
    expected = [run_directory / trace_path(first_step, rank, attempt) for rank in ranks]
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < give_up and not all(path.exists() for path in expected):
        time.sleep(_LOOK_AGAIN_SECONDS)
    try:
        from stepscope.workflow.analyze import analyze

        return analyze([str(run_directory)]).analysis
    except StepscopeError as error:
        return f"no verdict: {error}"
    except Exception as error:  # training must never be hurt
        logger.debug("the analysis failed", exc_info=True)
        return f"no verdict: {type(error).__name__}: {error}; try `stepscope analyze {run_directory} --debug`"


def summary_text(analysis: Analysis, run_directory: Path) -> str:
    """The verdict as `stepscope analyze` prints it, and where to find more."""
    lines = [headline(analysis.job), *verdict_lines(analysis.verdict)]
    return "\n".join([*lines, f"more: stepscope analyze {run_directory}"])
