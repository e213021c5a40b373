"""What does a job with faults look like, and which faults does it refuse?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.run_layout import TRUTH_FOLDER
from stepscope.reference_workloads.injections.injection import Injection
from stepscope.reference_workloads.job import TrainingJob


def control_of(job: TrainingJob) -> TrainingJob:
    """The same job without its faults, as they all ask for it; what a faulty run is measured against."""
    for injection in job.injections:
        job = injection.control(job)
    return replace(job, injections=())


def injected(job: TrainingJob) -> TrainingJob:
    """The control as its faults change it.

    Raises:
        UsageError: a fault means nothing for this job, or what it changes does not fit.
    """
    faulty = replace(control_of(job), injections=job.injections)
    for injection in job.injections:
        why = injection.refusal(faulty)
        if why is not None:
            raise UsageError(f"cannot inject {injection.name}: {why}")
        faulty = injection.change(faulty)
    return faulty


def write_injections(run_directory: Path, injections: Sequence[Injection]) -> None:
    """What was built in, as truth/injected.json beside the traces; read by no analysis. Nothing for a control."""
    if not injections:
        return
    faults = [
        {
            "name": injection.name,
            "cause": injection.cause,
            "also_right": list(injection.also_right),
            "reasons": list(injection.reasons),
            "shows": injection.shows,
            "severity": asdict(injection),
        }
        for injection in injections
    ]
    folder = run_directory / TRUTH_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "injected.json").write_text(json.dumps(faults, indent=1) + "\n", encoding="utf-8")
