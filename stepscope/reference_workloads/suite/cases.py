"""Cases of the suite: which fault in which layout of a preset, and the control that each is measured against.

A case is one labelled run: a layout with one fault, or a layout as it is, which must be called healthy. Its control is
the job that the fault asks for, without the fault. Cases that share a control share its run.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import unknown_name
from stepscope.reference_workloads.injections.catalogue import parse_injection
from stepscope.reference_workloads.injections.faults import control_of
from stepscope.reference_workloads.job import Injection, TrainingJob
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


def _suite_preset(table: dict[str, Any]) -> _SuitePreset:
    layouts = {name: ParallelPlan(**sizes) for name, sizes in table.pop("layouts").items()}
    schedule = Schedule(**table.pop("schedule")) if "schedule" in table else _SCHEDULE
    return _SuitePreset(layouts=layouts, schedule=schedule, **table)


_PRESETS = files("stepscope.reference_workloads.suite").joinpath("presets.toml").read_text(encoding="utf-8")
SUITES = {name: _suite_preset(table) for name, table in tomllib.loads(_PRESETS).items()}
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
