"""Headroom of recorded jobs of public libraries, with the real table of rates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.labelled_runs.score import KEPT
from stepscope.analyzer.headroom import rates
from stepscope.core.documents.analysis import Headroom
from stepscope.core.vocabulary import Change
from stepscope.workflow.analyze import analyze

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces" / "h200x1"


@pytest.fixture(autouse=True)
def simple_table() -> Iterator[None]:
    """The measured table, not the simple one of other tests."""
    rates.measured.cache_clear()
    yield
    rates.measured.cache_clear()


def headroom_of(run: Path) -> dict[Change | None, Headroom]:
    return {row.change: row for row in analyze([str(run)], keep=False).analysis.verdict.headroom}


@pytest.mark.skipif(not SHARED.is_dir(), reason="recorded traces are not beside this checkout")
def test_eager_attention_takes_what_the_fused_kernel_was_measured_to_take() -> None:
    row = headroom_of(SHARED / "eager_attn")[Change.FUSED_ATTENTION]
    assert row.step_ms == pytest.approx(69.5, rel=0.1)  # of 279.8 ms, measured with attn_implementation="sdpa"


def test_a_closure_in_the_optimizers_step_is_not_the_optimizers_work() -> None:
    """Lightning runs forward and backward pass inside of it; its optimizer is fused."""
    assert Change.FUSED_OPTIMIZER not in headroom_of(KEPT / "gpu" / "lightning_plain")


@pytest.mark.parametrize("name", ["llama_accumulates", "bert_python_saves", "graph_slow_python"])
def test_kernels_of_a_job_whose_host_is_the_limit_have_no_headroom(name: str) -> None:
    assert headroom_of(KEPT / "gpu" / name) == {}


@pytest.mark.parametrize("name", ["trainer_plain", "resnet_workers", "convnext_saves"])
def test_tuned_jobs_have_only_what_a_compiler_and_a_larger_batch_save(name: str) -> None:
    assert set(headroom_of(KEPT / "gpu" / name)) <= {Change.FUSED_KERNELS, Change.LARGER_BATCH}
