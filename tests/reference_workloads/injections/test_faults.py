"""Faults are injected into the requested job, each with its control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.injections.catalogue import INJECTIONS
from stepscope.reference_workloads.injections.faults import control_of, inject_faults
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.plan import find_preset
from stepscope.reference_workloads.recipe import Recipe

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
            faulty = inject_faults(job)
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
    faulty = inject_faults(replace(job, preset=llama, injections=(INJECTIONS[name](),)))
    faulty.plan.check_preset(faulty.preset)
    assert faulty.preset.num_heads % faulty.preset.num_key_value_heads == 0


def test_two_faults_share_one_control(job_of: Jobs) -> None:
    kinds = (INJECTIONS["uneven_stages"](), INJECTIONS["slow_loader"]())
    job = replace(job_of("tiny", "cpu", simulate_ms=5, pp=2), injections=kinds)
    faulty = inject_faults(job)
    assert faulty.plan.stage_layers == (1, 3)
    assert faulty.recipe.loader_workers == 0
    assert control_of(job).plan.stage_layers is None


_NOT_FOR_IMAGES = {
    "launch_bound",
    "memory_bound",
    "recompute",
    "tiny_buckets",
    "no_overlap",
    "no_prefetch",
    "wrong_transport",
    "few_micro_batches",
    "uneven_stages",
    "cpu_optimizer",
}


@pytest.mark.parametrize("name", INJECTIONS)
def test_a_fault_fits_a_resnet_or_says_what_it_needs(job_of: Jobs, name: str) -> None:
    job = replace(job_of(dp=2, zero=0), preset=find_preset("two-gpu", "resnet50"), injections=(INJECTIONS[name](),))
    if name in _NOT_FOR_IMAGES:
        with pytest.raises(UsageError, match=f"cannot inject {name}: it needs (a transformer|pp > 1|zero)"):
            inject_faults(job)
    else:
        assert inject_faults(job).preset == control_of(job).preset == job.preset


def test_what_a_fault_needs_is_asked_of_the_job_not_of_its_control(job_of: Jobs) -> None:
    cut = job_of(pp=2, dp=2, zero=0, stage_layers=(2, 6))
    faults = (INJECTIONS["launch_bound"](), INJECTIONS["no_overlap"]())  # whose control has stages of equal size
    with pytest.raises(UsageError, match="cannot inject launch_bound: it needs stages of equal size"):
        inject_faults(replace(cut, injections=faults))


@pytest.mark.parametrize(
    ("name", "plan", "reason"),
    [
        ("few_micro_batches", {"pp": 2, "schedule": "dualpipe-v"}, "cannot inject few_micro_batches: dualpipe-v needs"),
        (
            "no_overlap",
            {"tp": 2, "dp": 2, "zero": 1},
            "--no-overlap: cannot inject no_overlap: without DDP tensor-parallel",
        ),
        ("uneven_data", {"dp": 1}, "cannot inject uneven_data: it needs dp > 1"),
    ],
)
def test_whatever_cannot_be_names_the_fault(job_of: Jobs, name: str, plan: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        inject_faults(replace(job_of(**plan), injections=(INJECTIONS[name](),)))


@pytest.mark.parametrize(
    ("recipe", "names", "reason"),
    [
        (Recipe(loader_workers=8), ["slow_loader"], "it sets loader_workers to 0, and 8 is asked for already"),
        (Recipe(), ["slow_loader", "bursty_loader"], "inject bursty_loader: it sets loader_workers to 2, and 0"),
        (Recipe(loader_prefetch=4), ["slow_loader"], "inject slow_loader: the loader has no workers"),
        (Recipe(checkpoint_every=1, checkpoint_mode="async"), ["checkpoint_stall"], "sets checkpoint_every to 3"),
        (Recipe(bucket_mb=5.0), ["tiny_buckets"], "it sets bucket_mb to 0.5, and 5.0"),
        (Recipe(overlaps_reduction=False), ["no_overlap"], "the job is like that already"),
        (Recipe(activation_checkpointing="full"), ["recompute"], "the job is like that already"),
        (Recipe(activation_checkpointing="selective"), ["recompute"], "and selective is asked for already"),
    ],
)
def test_no_option_that_was_given_is_replaced_by_a_faults(
    job_of: Jobs, recipe: Recipe, names: list[str], reason: str
) -> None:
    faults = tuple(INJECTIONS[name]() for name in names)
    with pytest.raises(UsageError, match=reason):
        inject_faults(replace(job_of(dp=2, zero=0), recipe=recipe, injections=faults))


def test_a_fault_that_is_given_twice_is_refused(job_of: Jobs) -> None:
    stragglers = (INJECTIONS["straggler"](), INJECTIONS["straggler"]())
    with pytest.raises(UsageError, match="cannot inject straggler twice"):
        inject_faults(replace(job_of(dp=2), injections=stragglers))


def test_an_option_that_is_the_faults_own_stays(job_of: Jobs) -> None:
    job = replace(job_of(dp=2), recipe=Recipe(loader_workers=0), injections=(INJECTIONS["slow_loader"](),))
    assert inject_faults(job).recipe.loader_workers == 0
