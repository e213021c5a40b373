"""Are faults put into the job that they ask for, each with its control?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.causes import Cause
from stepscope.core.errors import UsageError
from stepscope.reference_workloads.injections.applied import control_of, injected
from stepscope.reference_workloads.injections.catalogue import INJECTIONS
from stepscope.reference_workloads.job import TrainingJob

Jobs = Callable[..., TrainingJob]

_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"dp": 2, "zero": 0},
    {"dp": 2, "zero": 3},
    {"tp": 2},
    {"pp": 2},
    {"preset": "node", "tp": 2, "pp": 2, "dp": 2},
)


@pytest.mark.parametrize("name", INJECTIONS)
def test_every_fault_fits_some_layout_of_gpus_and_its_control_fits_too(job_of: Jobs, name: str) -> None:
    fits = 0
    for layout in _LAYOUTS:
        job = replace(job_of(**layout), injections=(INJECTIONS[name](),))
        try:
            faulty = injected(job)
        except UsageError:
            continue
        control = control_of(job)
        for one in (faulty, control):
            one.plan.check_preset(one.preset)
        assert control.injections == ()
        fits += 1
    assert fits


@pytest.mark.parametrize("name", INJECTIONS)
def test_what_ends_a_run_is_a_hang_or_a_lack_of_memory(name: str) -> None:
    fault = INJECTIONS[name]()
    assert fault.ends_run == (fault.cause in {Cause.HANG, Cause.OUT_OF_MEMORY})
    assert not (fault.ends_run and fault.fix)
    assert set(fault.reasons_on("cpu")) <= set(fault.reasons_on("cuda")) == set(fault.reasons)


@pytest.mark.parametrize("name", ["launch_bound", "wrong_transport", "memory_bound"])
def test_a_llama_keeps_its_groups_of_heads_whole(job_of: Jobs, name: str) -> None:
    job = job_of(tp=2)
    llama = replace(job.preset, architecture="llama", num_key_value_heads=job.preset.num_heads // 4)
    faulty = injected(replace(job, preset=llama, injections=(INJECTIONS[name](),)))
    faulty.plan.check_preset(faulty.preset)
    assert faulty.preset.num_heads % faulty.preset.num_key_value_heads == 0


def test_two_faults_share_one_control(job_of: Jobs) -> None:
    kinds = (INJECTIONS["uneven_stages"](), INJECTIONS["slow_loader"]())
    job = replace(job_of("tiny", "cpu", simulate_ms=5, pp=2), injections=kinds)
    faulty = injected(job)
    assert faulty.plan.stage_layers == (1, 3)
    assert faulty.recipe.loader_workers == 0
    assert control_of(job).plan.stage_layers is None
