"""Files of a run directory, and the metadata of a captured trace."""

from __future__ import annotations

from stepscope.core.documents.run_directory import (
    ANALYSIS_FILE,
    CHECKPOINT_FOLDER,
    NCCL_FOLDER,
    PHASE_PREFIX,
    RUN_FILE,
    TIMELINE_FILE,
    TRUTH_FOLDER,
    WHOLE_STEPS_KEY,
    flight_path,
    live_record_path,
    live_state_path,
    memory_owners_path,
    memory_snapshot_path,
    oom_report_path,
    oom_snapshot_path,
    periodic_snapshot_path,
    stacks_path,
    steps_path,
    stuck_path,
    trace_path,
)
from stepscope.training.steps.spans import DATA_SPAN, STEP_PREFIX


def run_files() -> dict[str, dict[str, str]]:
    """What -> where it lies, of rank 3 and step 7; and what -> how a trace names it."""
    return {
        "files": {
            "analysis": ANALYSIS_FILE,
            "checkpoints": f"{CHECKPOINT_FOLDER}/",
            "manifest": RUN_FILE,
            "NCCL's logs": f"{NCCL_FOLDER}/",
            "time lines": TIMELINE_FILE,
            "truth of reference workloads": f"{TRUTH_FOLDER}/",
            "trace": str(trace_path(7, 3)),
            "trace of the second attempt": str(trace_path(7, 3, 2)),
            "steps": str(steps_path(3)),
            "flight recorder": str(flight_path(3)),
            "flight recorder while a step lasts long": str(live_record_path(3)),
            "state while a step lasts long": str(live_state_path(3)),
            "stuck step": str(stuck_path(3)),
            "stacks of a stuck step": str(stacks_path(3)),
            "memory snapshot": str(memory_snapshot_path(3)),
            "memory snapshot of a step": str(periodic_snapshot_path(7, 3)),
            "owners of that snapshot's blocks": str(memory_owners_path(7, 3)),
            "memory snapshot when it ran out": str(oom_snapshot_path(3)),
            "report when memory ran out": str(oom_report_path(3)),
        },
        "marks in a trace": {
            "key of the steps that are whole": WHOLE_STEPS_KEY,
            "span of a phase": f"{PHASE_PREFIX}NAME",
            "span of the wait for data": DATA_SPAN,
            "span of a step": f"{STEP_PREFIX}7",
        },
    }
