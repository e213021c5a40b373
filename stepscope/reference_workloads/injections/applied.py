"""What does a job with faults look like, and which faults does it refuse?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.run_layout import TRUTH_FOLDER
from stepscope.reference_workloads.injections.injection import Injection
from stepscope.reference_workloads.job import TrainingJob


def injected(job: TrainingJob) -> TrainingJob:
    """The job as its faults change it.

    Raises:
        UsageError: a fault means nothing for this job, or what it changes does not fit.
    """
    for injection in job.injections:
        why = injection.refusal(job)
        if why is not None:
            raise UsageError(f"cannot inject {injection.name}: {why}")
        job = injection.change(job)
    return job


def write_injections(run_directory: Path, injections: Sequence[Injection]) -> None:
    """What was built in, as truth/injected.json beside the traces; read by no analysis. Nothing for a control."""
    if not injections:
        return
    faults = [
        {
            "name": injection.name,
            "cause": injection.cause,
            "reasons": list(injection.reasons),
            "shows": injection.shows,
            "severity": asdict(injection),
        }
        for injection in injections
    ]
    folder = run_directory / TRUTH_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "injected.json").write_text(json.dumps(faults, indent=1) + "\n", encoding="utf-8")
