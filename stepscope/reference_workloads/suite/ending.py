"""Did a run of the suite fail, or did its fault end it as it should?"""

from __future__ import annotations

from stepscope.reference_workloads.injections.injection import Ending
from stepscope.reference_workloads.suite.cases import Run
from stepscope.reference_workloads.suite.results import RunResult


def why_failed(run: Run, result: RunResult) -> str | None:
    """In one line; None for a run that was analysed, or that its fault ended by what it is."""
    ending_faults = [injection for injection in run.job.injections if injection.ends_run]
    if not ending_faults:
        return result.error
    if result.trained:
        return "the fault was to end the run, which went on to its last step"
    ending = Ending(result.error or "it ended without a word", frozenset(result.artefacts))
    # One of them ends the run; the others are not reached then.
    reasons = [fault.wrong_end(run.job, ending) for fault in ending_faults]
    return None if None in reasons else reasons[0]
