"""JSON documents of reference training, whose types need torch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from stepscope.reference_workloads.injections.catalogue import INJECTIONS
from stepscope.reference_workloads.injections.faults import write_injections
from stepscope.reference_workloads.job import TrainingJob, TrainingOutcome
from stepscope.reference_workloads.launch import WorkloadResult
from stepscope.reference_workloads.models.simulated_compute import TruthLog
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from tests.contract.documents import printed_by
from tests.contract.samples import ANY_KEY, keys_and_kinds


def training_documents() -> dict[str, dict[str, str]]:
    """Schema, or what the document is where it has none -> path of each value -> what it is."""
    return {
        "stepscope.workload/1": keys_and_kinds(_workload_runs()),
        "truth/injected.json": keys_and_kinds([_injected()]),
        "truth/rank*.jsonl: one line": keys_and_kinds(_truth()),
    }


def _workload_runs() -> Iterable[Any]:
    """Of a run against its plan, and of one that skipped all its steps."""
    losses, seconds = [1.0, float("nan")], [0.1, 0.1]
    outcomes = (
        TrainingOutcome(losses, seconds, 1, 1, gradient_norms=[1.0]),
        TrainingOutcome(losses, seconds, num_skipped_steps=2),
    )
    options = (("--against-plan", "--no-profile", "--pp", "2"), ("--inject", "straggler:rank=1"))
    for outcome, more in zip(outcomes, options, strict=True):
        plan = ParallelPlan(pp=2) if "--pp" in more else ParallelPlan()
        job = TrainingJob(plan, find_preset("tiny"), "runs", "run", 2, device_type="cuda")
        result = WorkloadResult(Path("runs/run"), job, (outcome,))
        with (
            mock.patch("stepscope.reference_workloads.launch.run_workload", return_value=result),
            mock.patch.object(torch.cuda, "is_available", return_value=True),
            mock.patch.object(torch.cuda, "get_device_name", return_value="NVIDIA H100 80GB HBM3"),
        ):
            yield from printed_by("workload", "run", "gpt", *more)


def _injected() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        write_injections(Path(folder), [kind() for kind in INJECTIONS.values()])
        (file,) = Path(folder).rglob("*.json")
        faults = json.loads(file.read_bytes())
    for fault in faults:
        fault["severity"] = dict.fromkeys(fault["severity"] and [ANY_KEY], 1)
    return faults


def _truth() -> list[Any]:
    log = TruthLog(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
    log.end()
    with tempfile.TemporaryDirectory() as folder:
        log.write(Path(folder), 0)
        (file,) = Path(folder).rglob("*.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]
