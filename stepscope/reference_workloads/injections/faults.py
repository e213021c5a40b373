"""Injected faults of a job: the control, the faulty job, what a fault needs, and the record of what was injected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.documents.run_directory import TRUTH_FOLDER
from stepscope.core.errors import UsageError
from stepscope.reference_workloads.job import FaultSite, Injection, Need, TrainingJob
from stepscope.reference_workloads.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn


def layers_of(site: FaultSite) -> Iterator[nn.Module]:
    """The blocks that an injected fault changes on its rank, first to last; none for models without blocks."""
    from torch import nn

    for module in site.modules:
        for part in module.modules():
            blocks = getattr(part, "blocks", None)
            if isinstance(blocks, nn.ModuleDict):
                yield from blocks.values()


def widest_matrix(layer: nn.Module) -> nn.Linear:
    """The layer's widest matrix, on which an injected fault acts."""
    from torch import nn

    return max((part for part in layer.modules() if isinstance(part, nn.Linear)), key=lambda part: part.out_features)


def control_of(job: TrainingJob) -> TrainingJob:
    """Injections: the control of a faulty job: the same job without its injected faults, as they all ask for it.

    Raises:
        UsageError: the layout or model that a fault asks for cannot be.
    """
    for injection in job.injections:
        with _naming_the_fault(injection):
            job = injection.control(job)
    return replace(job, injections=())


def inject_faults(job: TrainingJob) -> TrainingJob:
    """The control job as its injected faults change it.

    Raises:
        UsageError: a fault means nothing for this job, what it changes does not fit, or was asked for otherwise.
    """
    names = [injection.name for injection in job.injections]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"cannot inject {twice} twice", what_next="give it once, with the severity of both")
    for injection in job.injections:  # what was asked for must have what a fault needs, before its control changes that
        missing = [need.text for need in injection.needs if not need.met(job)]
        if missing:
            raise UsageError(f"cannot inject {injection.name}: it needs {missing[0]}")
    faulty = replace(control_of(job), injections=job.injections)
    for injection in job.injections:
        why = injection.refusal(faulty)
        if why is not None:
            raise UsageError(f"cannot inject {injection.name}: {why}")
        with _naming_the_fault(injection):
            changed = injection.change(faulty)
            # An option that was given, or that another fault has set, is not replaced by a fault's own.
            for option in fields(Recipe):
                before, after = getattr(faulty.recipe, option.name), getattr(changed.recipe, option.name)
                if before not in {option.default, after}:
                    raise UsageError(
                        f"it sets {option.name} to {after}, and {before} is asked for already",
                        what_next="leave one of them out, or give the fault the same value",
                    )
            if changed == faulty and _lies_in_the_job(injection):
                raise UsageError("the job is like that already, so that a control would be as well")
            changed.plan.check_preset(changed.preset)
            changed.recipe.check(changed.plan, changed.preset, is_simulated=changed.simulate_ms > 0)
        faulty = changed
    return faulty


@contextmanager
def _naming_the_fault(injection: Injection) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        what = f"cannot inject {injection.name}: {error.what}"
        raise UsageError(what, where=error.where, what_next=error.what_next) from error


_HOOKS = ("environment", "dataset", "prepare", "before_step", "after_backward", "after_step")


def _lies_in_the_job(injection: Injection) -> bool:
    """Whether all that the fault does is to change layout, model or recipe."""
    kind = type(injection)
    return kind.change is not Injection.change and all(
        getattr(kind, hook) is getattr(Injection, hook) for hook in _HOOKS
    )


def write_injections(run_directory: Path, injections: Sequence[Injection]) -> None:
    """Write which faults were injected, as truth/injected.json; read by no analysis. Nothing for a control."""
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


TRANSFORMER = Need("a transformer (gpt or llama)", lambda job: job.preset.image is None)
GPUS = Need("GPUs", lambda job: job.device_type == "cuda")
TIMED_COMPUTE = Need("GPUs, or simulated compute on CPU", lambda job: job.device_type == "cuda" or job.simulate_ms > 0)
DATA_PARALLEL = Need("dp > 1", lambda job: job.plan.dp > 1)
EQUAL_STAGES = Need("stages of equal size", lambda job: job.plan.stage_layers is None)
PIPELINE = Need("pp > 1", lambda job: job.plan.pp > 1)
PEERS = Need("dp > 1 or tp > 1, for ranks with the same work", lambda job: job.plan.dp * job.plan.tp > 1)
COMPANY = Need("more than one rank", lambda job: job.plan.world_size > 1)
WHOLE_GRADIENTS = Need(
    "DDP (zero 0 or 1), where gradients go in buckets",
    lambda job: job.plan.zero in {0, 1} and not job.plan.replicate,
)
SHARDED_MODEL = Need("zero 2 or 3", lambda job: job.plan.zero in {2, 3})
SHARDED_WEIGHTS = Need("zero 3, where each layer gathers its weights", lambda job: job.plan.zero == 3)
NO_COMPILER = Need("layers that are not compiled", lambda job: not job.recipe.compiles)
PINNED_CORES = Need("Linux, where a process can be kept on one core", lambda _: hasattr(os, "sched_setaffinity"))
