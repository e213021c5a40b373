"""Files of a run directory, and the metadata of a captured trace."""

from __future__ import annotations

from stepscope.core.documents.run_directory import (
    ANALYSIS_FILE,
    CHECKPOINT_FOLDER,
    LIVE_VERDICT_FILE,
    NCCL_FOLDER,
    PHASE_PREFIX,
    RUN_FILE,
    TIMELINE_FILE,
    TRUTH_FOLDER,
    UPLOADS_FOLDER,
    WHOLE_STEPS_KEY,
    RankFile,
    removed_path,
    trace_path,
    view_path,
)
from stepscope.training.steps.spans import DATA_SPAN, STEP_PREFIX


def run_files() -> dict[str, dict[str, str]]:
    """What -> where it lies, of rank 3 and step 7; and what -> how a trace names it."""
    return {
        "files": {
            "analysis": ANALYSIS_FILE,
            "checkpoints": f"{CHECKPOINT_FOLDER}/",
            "live verdict": LIVE_VERDICT_FILE,
            "manifest": RUN_FILE,
            "NCCL's logs": f"{NCCL_FOLDER}/",
            "time lines": TIMELINE_FILE,
            "truth of reference workloads": f"{TRUTH_FOLDER}/",
            "trace": str(trace_path(7, 3)),
            "trace of the second attempt": str(trace_path(7, 3, 2)),
            "light capture": str(trace_path(7, 3, is_light=True)),
            "traces that views stand for": str(removed_path("step7", 3)),
            "view of a trace": str(view_path(trace_path(7, 3))),
            "replay of light captures": str(view_path(trace_path(7, 0, is_light=True), "light")),
            "upload of a node": f"{UPLOADS_FOLDER}/NODE.json",
            "steps": str(RankFile.STEPS.path(3)),
            "counters": str(RankFile.COUNTERS.path(3)),
            "where the rank runs": str(RankFile.PLACE.path(3)),
            "flight recorder": str(RankFile.FLIGHT_RECORDER.path(3)),
            "flight recorder while a step lasts long": str(RankFile.LIVE_RECORD.path(3)),
            "state while a step lasts long": str(RankFile.LIVE_STATE.path(3)),
            "stuck step": str(RankFile.STUCK_REPORT.path(3)),
            "stacks of a stuck step": str(RankFile.STACKS.path(3)),
            "memory snapshot": str(RankFile.MEMORY_SNAPSHOT.path(3)),
            "memory snapshot of a step": str(RankFile.PERIODIC_SNAPSHOT.path(3, 7)),
            "owners of that snapshot's blocks": str(RankFile.MEMORY_OWNERS.path(3, 7)),
            "memory snapshot when it ran out": str(RankFile.OOM_SNAPSHOT.path(3)),
            "report when memory ran out": str(RankFile.OOM_REPORT.path(3)),
        },
        "marks in a trace": {
            "key of the steps that are whole": WHOLE_STEPS_KEY,
            "span of a phase": f"{PHASE_PREFIX}NAME",
            "span of the wait for data": DATA_SPAN,
            "span of a step": f"{STEP_PREFIX}7",
        },
    }
