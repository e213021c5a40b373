"""Advice for training is for training: inference, and jobs of which too little is known, get none."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.analyzer.memory.categories import job_kind
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import JobKind, MemoryCategory
from tests.analyzer.memory.snapshots import GIB, MIB, report_of
from tests.collectors.fake_allocator import Allocator

_TRAINING_WORDS = ("ZeRO", "micro-batch", "recompute", "loss")


def _job(*stacks: str) -> Allocator:
    allocator = Allocator()
    allocator.segment(0, 64 * GIB)
    for place, stack in enumerate(stacks):
        allocator.alloc(place * 8 * GIB, 4 * GIB, stack)
    allocator.fail(80 * GIB, 0, stacks[-1])
    return allocator


@pytest.mark.parametrize(
    ("stacks", "job"),
    [
        (("eval", "eval"), JobKind.UNKNOWN),
        (("eval", "no_grad"), JobKind.INFERENCE),
        (("kv_cache", "eval"), JobKind.INFERENCE),
        (("no_grad", "forward"), JobKind.TRAINING),  # an evaluation; train.py is training
        (("kv_cache", "forward"), JobKind.INFERENCE),  # the engine that a training script starts
        (("kv_cache", "reduce", "engine, all"), JobKind.TRAINING),
        (("eval", "backward"), JobKind.TRAINING),
        (("eval", "optimizer"), JobKind.TRAINING),
        (("eval", "engine, all"), JobKind.TRAINING),
    ],
)
def test_advice_fits_the_job(stacks: tuple[str, ...], job: JobKind, tmp_path: Path) -> None:
    report = report_of(_job(*stacks), tmp_path)
    assert report.job is job
    advice = [remedy.change for remedy in report.remedies]
    assert advice
    assert any(word in change for change in advice for word in _TRAINING_WORDS) is (job is JobKind.TRAINING)


def test_the_kv_cache_is_a_category_and_its_size_an_option(tmp_path: Path) -> None:
    report = report_of(_job("kv_cache", "no_grad"), tmp_path)
    assert report.by_category[MemoryCategory.KV_CACHE] == 4 * GIB
    saved = {remedy.change.partition(" (")[0]: remedy.saved_bytes for remedy in report.remedies}
    assert saved["half the KV cache"] == 2 * GIB


def test_without_a_backward_pass_blocks_without_a_stack_are_no_gradients(tmp_path: Path) -> None:
    by_category = report_of(_job("engine", "no_grad"), tmp_path).by_category
    assert (by_category[MemoryCategory.GRADIENTS], by_category[MemoryCategory.OTHER]) == (0, 4 * GIB)


def test_without_any_recorded_stack_nothing_is_a_gradient(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 * MIB)
    allocator.alloc(0, MIB, "engine")
    allocator.step_ends()
    assert report_of(allocator, tmp_path).by_category[MemoryCategory.OTHER] == MIB


def test_an_earlier_job_s_optimizer_steps_do_not_count(tmp_path: Path) -> None:
    """torch keeps annotations when the recording starts again."""
    allocator = Allocator()
    allocator.step_ends()
    allocator.segment(0, 64 * MIB)
    allocator.alloc(0, MIB, "no_grad")
    assert report_of(allocator, tmp_path).job is JobKind.INFERENCE


@pytest.mark.parametrize(
    ("function", "file", "job"),
    [
        ("main", "pretrain_gpt.py", JobKind.TRAINING),
        ("training_step", "model.py", JobKind.TRAINING),
        ("main", "finetune.py", JobKind.TRAINING),
        ("from_pretrained", "modeling_utils.py", JobKind.UNKNOWN),
        ("evaluation_loop", "trainer.py", JobKind.UNKNOWN),
        ("main", "/home/training/serve.py", JobKind.UNKNOWN),
        ("step", "my_optimizer.py", JobKind.TRAINING),
        ("step", "engine.py", JobKind.UNKNOWN),
    ],
)
def test_what_names_say(function: str, file: str, job: JobKind) -> None:
    assert job_kind([(), (StackFrame(function, file, 1),)]) is job
