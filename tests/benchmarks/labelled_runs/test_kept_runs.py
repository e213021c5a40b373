"""Verdicts on the kept labelled runs are right, but for what is known to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.labelled_runs.score import CHECKS, KEPT, Marks, kept_runs, marks_of, reliability, truth_of
from stepscope.core.vocabulary import Cause, Reason

_RUNS = kept_runs()

_MISSED = {
    # Two values of each gradient are read; how much host time goes with them is seen for one only.
    "ranks/ddp_one_reads": {"share"},
    # The saves take 55 of 74 ms a step bare, 33 of 62 in the profiled run.
    "gpu/trainer_saves": {"share"},
    # Convolutions without the change of layout gain more than the nearest measured ones: 44 ms for 36.
    "headroom/resnet_nchw": {"gain"},
    # The host launches as long as a step takes: what it saves with the recomputation is not modelled.
    "headroom/llama_checkpointing": {"cause", "gain", "saving"},
    # The bare blocks are a fifth slower than the profiled run: the step is right, and less is saved of a shorter one.
    "communication/fsdp_small_units": {"saving"},
    # Compute hides each of the 16 reductions; what they take of the other threads no trace shows.
    "communication/ddp_small_buckets": {"action", "gain"},
    # The host is through with a step in 32 of 38 ms, and is called the limit.
    "communication/bert_searches_unused": {"cause"},
    # The rest of the host is up to a quarter faster without the fault, by how much the capture of the loop with it does
    # not show: what is left looks like late launches, and the step after the fix is too long.
    "calls/bert_clips_by_value": {"share"},
    "calls/encoder_counts_outliers": {"cause", "share"},
    "calls/gpt2_states_on_cpu": {"share", "step"},
    "calls/resnet_empties_cache": {"share"},
    # The same, and the profiled run is slower than the bare blocks.
    "calls/encoder_histograms": {"share", "step"},
    # Recorded when waits for the loaders of trainers' own loops were in no record: no step tells why it is slow.
    "several/hf_ddp_loader": {"cause", "reasons", "ranks", "advice"},
    # Most of what a tensor of one number costs is Python and its launch, not the copy.
    "calls/resnet_scalar_tensors": {"cause"},
}
"""What is wrong, with the reason."""


@pytest.mark.parametrize("run", _RUNS, ids=lambda run: f"{run.parent.name}/{run.name}")
def test_a_verdict_is_right_but_for_what_is_known_to_be_wrong(run: Path) -> None:
    marks = marks_of(run)
    missed = {check: wrong for check, wrong in marks.checks.items() if wrong is not None}
    assert missed.keys() == _MISSED.get(f"{marks.lane}/{marks.name}", set()), missed


def test_what_is_known_to_be_wrong_is_kept() -> None:
    assert _MISSED.keys() <= {f"{run.parent.name}/{run.name}" for run in _RUNS}


@pytest.mark.parametrize("run", kept_runs(), ids=lambda run: f"{run.parent.name}/{run.name}")
def test_a_truth_is_whole(run: Path) -> None:
    truth = truth_of(run)
    faults = [truth, *truth.get("pair", {}).values()]
    assert all(fault["cause"] and {Cause(cause) for cause in fault["cause"]} for fault in faults)
    assert all(Reason(reason) for fault in faults for reason in fault["reasons"])
    assert truth["bottleneck"] in (True, False, None)
    assert all(blocks and min(blocks) > 0 for blocks in truth["blocks_ms"].values())
    if truth.get("share") is not None and truth["fixed_ms"] is not None:
        assert truth["share"] == pytest.approx(1 - truth["fixed_ms"] / truth["bare_ms"], abs=0.002)


def test_all_runs_stay_small() -> None:
    assert len(kept_runs()) == 113
    assert sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file()) < 42e6


def test_the_reliability_table_counts_what_is_named() -> None:
    right = Marks("gpu", "a", "copy", 1.0, {"cause": None, "reasons": None, "share": "0.1 for 0.3"})
    wrong = Marks("cpu", "b", "copy", 0.97, {"cause": "copy"})
    unsure = Marks("cpu", "c", "copy", 0.4, {"cause": "copy"})
    table = [(part.low, part.num_right, part.num_verdicts) for part in reliability([right, wrong, unsure])]
    assert table == [(0.0, 0, 1), (0.95, 1, 2)]
    assert not right.is_right(CHECKS)
