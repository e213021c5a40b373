"""Lines of a verdict: one pattern, one denominator, one number style."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from stepscope.core.documents.analysis import (
    Analysis,
    EvidenceLayer,
    Headroom,
    NextCause,
    PredictedFix,
    RankLedger,
)
from stepscope.core.text.verdict import (
    NO_BOTTLENECK,
    UNKNOWN,
    confidence_word,
    verdict_text,
)
from stepscope.core.vocabulary import Cause, Evidence, Notice, Reason
from tests.dashboard import example_run as example

TRACES_ALONE = example.make_analysis(example.make_timelines())
"""As documents of the version before training time: neither `job_time` nor `bottleneck`."""
JOB = example.with_job_time(TRACES_ALONE)
"""Data loading takes 149.1 of 190.1 ms per step in 40 steps."""


def judged(analysis: Analysis, **changes: object) -> Analysis:
    return replace(analysis, verdict=replace(analysis.verdict, **changes))  # type: ignore[arg-type]


def test_a_bottleneck_is_said_in_one_pattern() -> None:
    assert verdict_text(JOB).lines() == [
        "BOTTLENECK  Data loading on rank 3: 78.4% of training time "
        "(149.0 of 190.1 ms per step, 34 of 40 steps observed)",
        "  The GPU waits for the DataLoader: 50.0% of the steps wait for data, a long wait every 2 batches.",
        "  Fix       num_workers=10 (now 2): about 41.0 ms per step, 4.6x faster (model error 15%)",
        "  Then      raise num_workers and prefetch_factor",
        "  Next      CPU-bound (dispatch, python): 3.6% of training time, 6.8 ms per step",
        "Confidence high: telemetry of 34 steps, 5 profiled steps (profiling adds 4%), GPU counters agree.",
    ]


def test_shares_reconcile_with_the_milliseconds_beside_them() -> None:
    for share, ms, step_ms in re.findall(
        r"([\d.]+)% of training time \(([\d.,]+) of ([\d.,]+) ms", "".join(verdict_text(JOB).lines())
    ):
        assert float(ms) / float(step_ms) == pytest.approx(float(share) / 100, abs=6e-4)


def test_without_records_of_all_steps_the_share_is_of_the_profiled_ones() -> None:
    text = verdict_text(TRACES_ALONE)
    share = next(row.fraction for row in TRACES_ALONE.root_causes if row.cause is Cause.PIPELINE_BUBBLE)
    step_ms = TRACES_ALONE.job.step_ms or 0.0
    assert text.lines()[0] == (
        f"BOTTLENECK  Pipeline bubble: {share:.1%} of profiled time "
        f"({share * step_ms:,.1f} of {step_ms:,.1f} ms per step, 5 profiled steps)"
    )
    assert text.confidence.endswith(", no telemetry of other steps.")


def test_no_bottleneck_gives_the_largest_loss_and_what_could_be_gained() -> None:
    assert JOB.job_time is not None
    shares = {"memory_bound": 0.921, "unexplained": 0.065, "device_gap": 0.014}
    healthy = judged(
        replace(JOB, job_time=replace(JOB.job_time, breakdown=shares)),
        cause=Cause.MEMORY_BOUND,
        reasons=[Reason.UNFUSED],
        bottleneck=False,
        share=0.921,
        fix=None,
        evidence=[Evidence("unfused_share", 0.567, "ratio", 0.05)],
        actions=["torch.compile the chains", "fused=True"],
    )
    text = verdict_text(healthy)
    assert text.label == NO_BOTTLENECK
    assert text.lines()[:4] == [
        "NO BOTTLENECK  memory-bound at 27% MFU; largest loss 1.4% (GPU launch gaps)",
        "  92.1% of training time is memory-bound work. "
        "Element-wise chains that are not fused take 56.7% of the profiled steps.",
        "HEADROOM  torch.compile the chains (gain not modelled)",
        "          fused=True (gain not modelled)",
    ]
    modelled = judged(healthy, headroom=[Headroom("TF32 for matrix products", 66.0, 3.04)])
    assert verdict_text(modelled).headroom == ["TF32 for matrix products: about 66.0 ms per step, 3.0x faster (model)"]


def test_without_a_bottleneck_a_cause_that_is_no_work_is_not_named() -> None:
    assert JOB.job_time is not None
    time = replace(JOB.job_time, breakdown={"unexplained": 0.95, "host_bound": 0.05})
    text = verdict_text(judged(replace(JOB, job_time=time), cause=Cause.HOST_BOUND, bottleneck=False, fix=None))
    assert text.lines()[0] == "NO BOTTLENECK  no loss reaches 10% of training time; largest loss 5.0% (CPU-bound)"
    assert (text.evidence, text.headroom) == ("", [])


def test_an_unknown_cause_says_what_is_missing_and_how_to_record_it() -> None:
    text = verdict_text(
        judged(
            JOB,
            cause=Cause.INSUFFICIENT_EVIDENCE,
            bottleneck=None,
            summary="40% of the steps have no device activity",
            actions=["profile fewer steps"],
            confidence=0.5,
        )
    )
    assert text.label == UNKNOWN
    assert text.lines()[:2] == [
        "UNKNOWN  40% of the steps have no device activity",
        "  Record    profile fewer steps",
    ]
    assert text.confidence.startswith("low: ")


def test_lost_time_of_unknown_cause_has_no_fix_but_a_way_to_record_it() -> None:
    text = verdict_text(judged(JOB, cause=Cause.UNEXPLAINED, reasons=[], ranks=[0], actions=["profile them"]))
    assert text.head.startswith("Slow steps without a recorded cause on rank 0: 78.4% of training time")
    assert text.remedies[:2] == [
        ("Fix", "none known; without this loss about 41.0 ms per step, 4.6x faster (model error 15%)"),
        ("Record", "profile them"),
    ]


@pytest.mark.parametrize(
    ("fix", "text"),
    [
        (
            PredictedFix("do: this", 41.04, 4.63, 0.15, "telemetry"),
            "do: this; then about 41.0 ms per step, 4.6x faster (model error 15%)",
        ),
        (
            PredictedFix("this", 186.0, 1.007, 1.8e-5, "replay"),
            "this: about 186.0 ms per step, 1.01x faster (model error 0.0%)",
        ),
        (
            PredictedFix("this", None, None, None, "bound", (45.34, 64.83)),
            "this: 45.3 to 64.8 ms per step (bounds, now 190.1)",
        ),
        (
            PredictedFix("profile(with_stack=True) shows which Python runs", 26.4, 2.9, 0.0, "replay"),
            "profile(with_stack=True) shows which Python runs; without this loss about 26.4 ms per step, 2.9x faster "
            "(model error 0.0%)",
        ),
        (None, "num_workers=10 (now 2) (step after it not predicted)"),
    ],
)
def test_the_step_after_the_fix_has_its_gain_and_error_or_its_bounds(fix: PredictedFix | None, text: str) -> None:
    assert verdict_text(judged(JOB, fix=fix)).remedies[0] == ("Fix", text)


def test_a_verdict_without_remedies_says_so() -> None:
    assert verdict_text(judged(JOB, fix=None, actions=[])).remedies[0] == ("Fix", "none known")


def test_skipped_updates_are_counted_per_useful_step() -> None:
    assert JOB.job_time is not None
    time = replace(JOB.job_time, breakdown={"wasted_steps": 0.428, "memory_bound": 0.572})
    wasted = judged(
        replace(JOB, job_time=time), cause=Cause.WASTED_STEPS, reasons=[Reason.OVERFLOW], share=0.428, evidence=[]
    )
    lines = verdict_text(wasted).lines()
    assert lines[1].endswith("Each useful step costs 332.3 ms of training time.")
    assert "ms per useful step" in lines[2]


def test_a_part_of_a_cause_that_the_records_measured_is_named_by_itself() -> None:
    assert JOB.job_time is not None
    shares = {"memory_bound": 0.5, "garbage_collection": 0.3, "host_bound": 0.2}
    collected = judged(
        replace(JOB, job_time=replace(JOB.job_time, breakdown=shares)),
        cause=Cause.HOST_BOUND,
        share=0.3,
        evidence=[],
        ranks=[],
        next=NextCause(Cause.HOST_BOUND, 0.2, [Reason.PYTHON]),
    )
    text = verdict_text(collected)
    assert text.title == "Garbage collection"
    assert text.remedies[-1] == ("Next", "CPU-bound (python): 20.0% of training time, 38.0 ms per step")
    other = verdict_text(judged(collected, share=0.2, next=NextCause(Cause.HOST_BOUND, 0.3, [Reason.GC])))
    assert other.title == "CPU-bound"
    assert other.remedies[-1] == ("Next", "garbage collection (gc): 30.0% of training time, 57.0 ms per step")


def test_a_job_without_a_gpu_hears_nothing_of_one() -> None:
    on_cpu = replace(JOB, job=replace(JOB.job, device_kind="cpu", gpu=None, mfu=None))
    work = judged(on_cpu, cause=Cause.COMPUTE_BOUND, bottleneck=False, share=0.843, evidence=[], actions=[], fix=None)
    slow = judged(on_cpu, cause=Cause.HOST_BOUND, reasons=[], evidence=[])
    assert verdict_text(work).head.startswith("the CPU is busy in operators for 84.3% of training time; largest loss")
    for analysis in (work, slow):
        lines = verdict_text(replace(analysis, job_time=None)).lines()
        assert not [line for line in lines if "GPU" in line or "compute-bound" in line]


@pytest.mark.parametrize(("confidence", "word"), [(0.9, "high"), (0.89, "medium"), (0.6, "medium"), (0.59, "low")])
def test_confidence_is_a_word(confidence: float, word: str) -> None:
    assert confidence_word(confidence) == word


def test_a_low_confidence_says_why() -> None:
    assert JOB.job_time is not None
    layers = [EvidenceLayer("trace", True, False, "step time differs by +77% from other steps")]
    unsure = judged(
        replace(
            JOB,
            job=replace(JOB.job, missing_ranks=[6, 7]),
            job_time=replace(JOB.job_time, layers=layers, num_settled=6),
            trace_quality=replace(JOB.trace_quality, profiler_distortion=None),
            warnings=[Notice("oversubscribed", "")],
        ),
        confidence=0.5,
        fix=PredictedFix("this", None, None, None, "bound", (1.0, 2.0)),
    )
    assert verdict_text(unsure).confidence == (
        "low: telemetry of 6 steps, 5 profiled steps (step time differs by +77% from other steps), "
        "no trace of ranks 6–7, only bounds of the loss are known, few steps, no GPU counters, "
        "more ranks than CPU cores."
    )


def test_a_rank_by_the_order_of_files_is_named_by_its_file() -> None:
    ranks = [replace(rank, rank_source="order") for rank in JOB.ranks]
    assert isinstance(ranks[0], RankLedger)
    nameless = judged(
        replace(JOB, ranks=ranks), ranks=[], summary="it costs; look at b.json: this file gives no global rank"
    )
    assert verdict_text(nameless).evidence.endswith(" Look at b.json: this file gives no global rank.")
