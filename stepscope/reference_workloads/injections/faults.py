"""Injected faults: what a fault is, what a job must have for it, the control, and the record of what was injected.

An injection (a fault) is a small frozen dataclass of its severity. It states what the analysis must find (`cause`,
`shows`) and changes the run through the hooks below; the same job without it is its control.

`control` may ask for a job in which the fault matters at all: an exposed all-reduce costs nothing beside hours of
compute. Control and faulty run then differ in the fault alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from stepscope.core.documents.run_directory import TRUTH_FOLDER
from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


_Number = TypeVar("_Number", int, float)
_ALLOWED = "allowed"


@dataclass(frozen=True, slots=True)
class Need:
    """What a job must have for an injected fault to mean anything; `text` completes "it needs"."""

    text: str
    met: Callable[[TrainingJob], bool]


@dataclass(frozen=True, slots=True)
class SeverityBounds:
    """Bounds of an injected fault's severity, which is always finite; None is no bound."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)


def severity(default: _Number, **bounds: float) -> _Number:
    """A field of an injected fault: one severity, with its `SeverityBounds`."""
    allowed: _Number = field(default=default, metadata={_ALLOWED: SeverityBounds(**bounds)})
    return allowed


@dataclass(frozen=True, slots=True)
class FaultyRunEnding:
    """How a run with an injected fault failed: the error line, and the files it left in its run directory."""

    error: str
    left: frozenset[str]


@dataclass(slots=True)
class FaultSite:
    """The rank on which an injected fault acts, once its model is built.

    Attributes:
        rank: of the whole job.
        modules: the model parts this rank trains, sharded.
        kept: whatever faults must hold on to until the run ends, by the fault's name.
    """

    job: TrainingJob
    rank: int
    mesh: DeviceMesh
    device: torch.device
    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Injection:
    """One injected fault. Fields of subclasses are its severity; hooks do nothing by default.

    Attributes:
        name: of the case, as `--inject` takes it.
        cause: what the verdict must say; HANG and OUT_OF_MEMORY end the run.
        reasons: one of them must be named with the cause; empty when any will do.
        also_right: causes that are as right, where one fault has two faces.
        needs: what a job must have for the fault to mean anything.
        shows: what the trace (or what the run leaves) must show.
        fix: what `whatif` is to remove so that its prediction meets the control's step; None where the fix is no
            removal.

    Raises:
        UsageError: a severity is out of its bounds.
    """

    name: ClassVar[str]
    cause: ClassVar[Cause]
    reasons: ClassVar[tuple[Reason, ...]] = ()
    also_right: ClassVar[tuple[Cause, ...]] = ()
    needs: ClassVar[tuple[Need, ...]] = ()
    shows: ClassVar[str]
    fix: ClassVar[Cause | None] = None

    def __post_init__(self) -> None:
        for each in fields(self):
            allowed = each.metadata.get(_ALLOWED)
            value = getattr(self, each.name)
            if allowed is not None and not allowed.holds(value):
                raise UsageError(f"{each.name} of injection {self.name} is {allowed}, not {value}")

    @property
    def ends_run(self) -> bool:
        """Whether the run fails: RankFailedError is then what is expected."""
        return self.cause in {Cause.HANG, Cause.OUT_OF_MEMORY}

    def reasons_on(self, device_type: str) -> tuple[Reason, ...]:
        """Those of `reasons` that a trace of this kind of device ("cpu", "cuda") can tell."""
        return self.reasons

    def unexpected_ending(self, job: TrainingJob, ending: FaultyRunEnding) -> str | None:
        """Difference between how a failed run ended and what this fault causes; None where they agree."""
        return None

    def refusal(self, job: TrainingJob) -> str | None:
        """Why the fault means nothing for this job (one GPU has no link to slow down); None when it does."""
        missing = [need.text for need in self.needs if not need.met(job)]
        return f"it needs {missing[0]}" if missing else None

    def control(self, job: TrainingJob) -> TrainingJob:
        """The job that the fault goes into, and that alone is its control: by default the job as it is."""
        return job

    def change(self, job: TrainingJob) -> TrainingJob:
        """The control with the fault, for faults of the layout, model or recipe."""
        return job

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        """Variables that each rank sets before its process group is made."""
        return {}

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        """The map-style dataset that this data-parallel rank reads."""
        return dataset

    def prepare(self, site: FaultSite) -> None:
        """The model and optimizer are there; the first step has not begun."""

    def before_step(self, site: FaultSite, step: int) -> None:
        """The batch is there; nothing of step `step` has been computed."""

    def after_backward(self, site: FaultSite, step: int) -> None:
        """The gradients are there; the optimizer has not run."""

    def after_step(self, site: FaultSite, step: int) -> None:
        """The optimizer has run; the step is still open."""


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
