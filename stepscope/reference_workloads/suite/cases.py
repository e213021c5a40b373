"""Cases of the suite: which fault in which layout of a preset, and the control that each is measured against.

A case is one labelled run: a layout with one fault, or a layout as it is, which must be called healthy. Its control is
the job that the fault asks for, without the fault. Cases that share a control share its run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import unknown_name
from stepscope.reference_workloads.injections.catalogue import parse_injection
from stepscope.reference_workloads.injections.faults import Injection, control_of
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from stepscope.training import Schedule

HEALTHY = "healthy"
"""In place of a fault's name: the layout as it is."""

_SCHEDULE = Schedule(first=7, warmup=1, active=3, repeat=1)
_NUM_STEPS = 14
"""Three steps to settle, three measured, one to warm the profiler up, three captured, one disturbed, three measured."""


@dataclass(frozen=True, slots=True)
class _SuitePreset:
    """The runs of one preset.

    Attributes:
        device_type: "cpu" or "cuda".
        cases: layout -> what is run in it, HEALTHY or as `--inject` takes it; the most telling ones first.
        model: preset of the model; the suite's own name when None.
        batch_size: sequences in a batch; None for the model preset's.
        simulate_ms: how long a layer sleeps on CPU, by layout: so long that what the host does beside it is little.
    """

    device_type: str
    layouts: Mapping[str, ParallelPlan]
    cases: Mapping[str, Sequence[str]]
    model: str | None = None
    batch_size: int | None = None
    simulate_ms: Mapping[str, float] = field(default_factory=dict)
    schedule: Schedule = _SCHEDULE
    num_steps: int = _NUM_STEPS


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One training run of a suite: a job with its fault or without. Equal fingerprints mean the same job."""

    name: str
    job: TrainingJob

    @property
    def fingerprint(self) -> str:
        definition = asdict(replace(self.job, out="", run=""))
        definition["injections"] = [[injection.name, asdict(injection)] for injection in self.job.injections]
        text = json.dumps(definition, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One labelled run of a suite, and the control that it is measured against.

    Attributes:
        name: LAYOUT-FAULT.
        injection: the fault; None for a layout as it is.
        control: the same job without the fault; for a healthy one the run itself.
    """

    name: str
    layout: str
    injection: Injection | None
    run: SuiteRun
    control: SuiteRun


SUITES: dict[str, _SuitePreset] = {
    "tiny": _SuitePreset(
        device_type="cpu",
        layouts={
            "ddp": ParallelPlan(dp=2, zero=0),
            "pp": ParallelPlan(pp=2, micro_batches=16),
            "one": ParallelPlan(),
        },
        cases={
            "ddp": (
                HEALTHY,
                "straggler",
                "slow_loader:milliseconds_per_item=60",
                "checkpoint_stall:every_steps=1",
                "dying_rank",
                "uneven_data",
            ),
            "pp": (HEALTHY, "uneven_stages", "few_micro_batches", "slow_loader:milliseconds_per_item=40"),
            "one": (HEALTHY, "slow_loader:milliseconds_per_item=40", "bursty_loader:milliseconds_per_item=60"),
        },
        batch_size=16,
        simulate_ms={"ddp": 25.0, "pp": 14.0, "one": 20.0},
        schedule=Schedule(first=5, warmup=1, active=3, repeat=1),
        num_steps=11,
    ),
    "tiny-3d": _SuitePreset(
        device_type="cpu",
        layouts={"3d": ParallelPlan(tp=2, pp=2, dp=2, zero=1, micro_batches=16)},
        cases={
            "3d": (
                HEALTHY,
                "few_micro_batches",
                "uneven_stages",
                "straggler",
                "slow_loader:milliseconds_per_item=40",
            )
        },
        model="tiny",
        batch_size=32,
        simulate_ms={"3d": 40.0},
        schedule=Schedule(first=4, warmup=1, active=2, repeat=1),
        num_steps=9,
    ),
    "one-gpu": _SuitePreset(
        device_type="cuda",
        layouts={"one": ParallelPlan()},
        cases={
            "one": (
                HEALTHY,
                "slow_loader",
                "launch_bound",
                "memory_bound",
                "host_sync",
                "checkpoint_stall",
                "allocator_churn",
                "recompute",
                "bursty_loader",
                "cpu_starved_loader",
                "oom_growth",
                "oom_fragmentation",
            )
        },
    ),
    "two-gpu": _SuitePreset(
        device_type="cuda",
        layouts={
            "ddp": ParallelPlan(dp=2, zero=0),
            "tp": ParallelPlan(tp=2),
            "pp": ParallelPlan(pp=2, micro_batches=16),
            "fsdp": ParallelPlan(dp=2, zero=3),
        },
        cases={
            "ddp": (
                HEALTHY,
                "slow_loader",
                "straggler",
                "no_overlap",
                "tiny_buckets:message_mb=2",  # 2,000 all-reduces a step; 8,000 make a trace of 300,000 events
                "wrong_transport",
                "host_sync",
                "checkpoint_stall",
                "memory_bound",
                "launch_bound",
                "allocator_churn",
                "bursty_loader",
                "cpu_starved_loader",
                "recompute",
                "dying_rank",
                "uneven_data",
            ),
            "tp": (HEALTHY, "wrong_transport", "launch_bound", "slow_loader"),
            "pp": (HEALTHY, "few_micro_batches", "uneven_stages", "slow_loader", "launch_bound"),
            "fsdp": (HEALTHY, "no_prefetch", "wrong_transport", "straggler", "cpu_optimizer", "oom_growth"),
        },
    ),
    "four-gpu": _SuitePreset(
        device_type="cuda",
        layouts={
            "tp_pp": ParallelPlan(tp=2, pp=2, micro_batches=16),
            "pp_dp": ParallelPlan(pp=2, dp=2, zero=1, micro_batches=16),
            "tp_dp": ParallelPlan(tp=2, dp=2, zero=3),
            "interleaved": ParallelPlan(pp=2, dp=2, zero=2, schedule="interleaved", micro_batches=16),
        },
        cases={
            "tp_pp": (HEALTHY, "few_micro_batches", "uneven_stages", "straggler", "wrong_transport"),
            "pp_dp": (HEALTHY, "few_micro_batches", "straggler", "checkpoint_stall"),
            "tp_dp": (HEALTHY, "slow_loader", "straggler"),
            "interleaved": (HEALTHY,),
        },
        model="two-gpu",
        batch_size=32,
    ),
    "node": _SuitePreset(
        device_type="cuda",
        layouts={
            "3d": ParallelPlan(tp=2, pp=2, dp=2, zero=1, micro_batches=16),
            "3d_interleaved": ParallelPlan(tp=2, pp=2, dp=2, zero=2, schedule="interleaved", micro_batches=16),
            "3d_zero2": ParallelPlan(tp=2, pp=2, dp=2, zero=2, micro_batches=16),
            "tp_dp": ParallelPlan(tp=2, dp=4, zero=3),
        },
        cases={
            "3d": (
                HEALTHY,
                "few_micro_batches",
                "uneven_stages",
                "straggler",
                "slow_loader",
                "wrong_transport",
                "checkpoint_stall",
            ),
            "3d_interleaved": (HEALTHY, "few_micro_batches"),
            "3d_zero2": (HEALTHY, "straggler"),
            "tp_dp": (HEALTHY, "slow_loader"),
        },
    ),
}
"""By name."""


def find_cases(preset: str, *, device: str = "auto", only: Sequence[str] = ()) -> list[SuiteCase]:
    """Cases of a suite's preset in the order in which they run: healthy runs first, then layouts by turns.

    Args:
        device: "auto" for the preset's own, else "cpu" or "cuda".
        only: names or patterns of cases (`ddp-*`); all when empty.

    Raises:
        UsageError: there is no suite of that name, no such device, or no such case.
    """
    if preset not in SUITES:
        raise unknown_name("preset of the suite", preset, SUITES)
    if device not in {"auto", "cpu", "cuda"}:
        raise UsageError(f'a device is "auto", "cpu" or "cuda", not {device!r}')
    suite = SUITES[preset]
    device_type = suite.device_type if device == "auto" else device
    # By turns, so that a suite that is cut short has seen every layout.
    longest = max(map(len, suite.cases.values()))
    order = [
        (layout, faults[place])
        for place in range(longest)
        for layout, faults in suite.cases.items()
        if place < len(faults)
    ]
    controls: dict[str, SuiteRun] = {}
    cases = [_case(preset, layout, fault, device_type, controls) for layout, fault in order]
    return _chosen(cases, only)


def _case(preset: str, layout: str, fault: str, device_type: str, controls: dict[str, SuiteRun]) -> SuiteCase:
    suite = SUITES[preset]
    injection = None if fault == HEALTHY else parse_injection(fault)
    model = find_preset(suite.model or preset)
    job = TrainingJob(
        plan=suite.layouts[layout],
        preset=replace(model, batch_size=suite.batch_size or model.batch_size),
        out="",
        run="",
        num_steps=suite.num_steps,
        device_type=device_type,
        simulate_ms=suite.simulate_ms.get(layout, 0.0) if device_type == "cpu" else 0.0,
        schedule=suite.schedule,
        injections=() if injection is None else (injection,),
    )
    name = f"{layout}-{HEALTHY if injection is None else injection.name}"
    control = SuiteRun(name if injection is None else f"{name}-control", control_of(job))
    control = controls.setdefault(control.fingerprint, control)
    return SuiteCase(name, layout, injection, control if injection is None else SuiteRun(name, job), control)


def _chosen(cases: list[SuiteCase], only: Sequence[str]) -> list[SuiteCase]:
    unknown = [wanted for wanted in only if not any(fnmatchcase(case.name, wanted) for case in cases)]
    if unknown:
        raise unknown_name("case", unknown[0], [case.name for case in cases])
    return [case for case in cases if not only or any(fnmatchcase(case.name, wanted) for wanted in only)]
