"""The numbers behind a verdict read as one sentence."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.analysis import Analysis, PredictedFix
from stepscope.core.text.evidence import _CLAUSES, evidence_sentence, evidence_value, threshold_value
from stepscope.core.vocabulary import Cause, Evidence, Reason
from tests.core.text.test_wording import analyzer_metrics
from tests.dashboard import example_run as example

ANALYSIS = example.make_analysis(example.make_timelines())


def sentence(cause: Cause, *evidence: Evidence, reasons: tuple[Reason, ...] = (), device: str = "gpu") -> str:
    verdict = replace(ANALYSIS.verdict, cause=cause, reasons=list(reasons), evidence=list(evidence), fix=None)
    job = replace(ANALYSIS.job, device_kind=device)
    return evidence_sentence(replace(ANALYSIS, verdict=verdict, job=job))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1489.1, "ms", "1,489.1 ms"), (12.34, "ms", "12.3 ms"), (1_234_567.8, "ms", "1,234,567.8 ms"),
     (1489.1, "calls", "1,489 calls"), (999.7, "calls", "1,000 calls"), (1.0, "calls", "1 call"),
     (0.5, "calls", "0.5 calls"), (0.0, "calls", "0 calls"),
     (1.0, "batches", "1 batch"), (7.0, "batches", "7 batches"), (1.31, "times", "1.31 times"),
     (225.4, "GB/s", "225 GB/s"), (1800.0, "GB/s", "1,800 GB/s"), (0.00001, "GB/s", "<0.001 GB/s"),
     (0.123, "of the mean wait", "0.123 of the mean wait"), (3.0, "", "3"), (0.317, "ratio", "31.7%"),
     (1e300, "ms", "– ms"), (float("nan"), "GB/s", "– GB/s")],
)  # fmt: skip
def test_a_value_stands_with_its_unit(value: float, unit: str, text: str) -> None:
    assert evidence_value(Evidence("what_if_step", value, unit)) == text


@given(
    st.floats(min_value=0, max_value=1e15), st.sampled_from(["ms", "GB/s", "calls", "batches", "times", "ratio", ""])
)
def test_no_number_is_written_with_an_exponent(value: float, unit: str) -> None:
    evidence = Evidence("bus_bandwidth", value, unit, threshold=value)
    assert not re.search(r"\de", evidence_value(evidence) + threshold_value(evidence))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "The GPU waits for the DataLoader: 50.0% of the steps wait for data, a long wait every 2 batches.",
            sentence(
                Cause.DATA_LOADING,
                Evidence("share_of_training_time", 0.784, "ratio", 0.1, [0]),
                Evidence("period_of_waits", 2, "batches", ranks=[0]),
                Evidence("waiting_steps", 0.5, "ratio", ranks=[0]),
            ),
        ),
        (
            "Kernel launches cannot keep up with the GPU: rank 1 caused 99.5% of it, "
            "69.2% of the delay is in operators and launch calls, 29.6% in Python between operators.",
            sentence(
                Cause.HOST_BOUND,
                Evidence("share_caused_by_these_ranks", 0.995, "ratio", ranks=[1]),
                Evidence("share_of_late_host_time: dispatch", 0.692, "ratio", 0.2),
                Evidence("share_of_late_host_time: python", 0.296, "ratio", 0.2),
                reasons=(Reason.DISPATCH, Reason.PYTHON),
            ),
        ),
        (
            "Blocking calls keep the CPU from running ahead of the GPU: "
            "100.0% of the blocked time is for reading values (.item(), nonzero), 112 calls per step.",
            sentence(
                Cause.SYNCHRONIZATION,
                Evidence("share_of_blocked_time: reads_value", 1.0, "ratio", 0.2),
                Evidence("blocking_calls_a_step: reads_value", 112.0, "calls"),
            ),
        ),
        (
            "No compute hides these transfers: collectives reach a bus bandwidth of 24.7 GB/s (threshold 111), "
            "the link's is 332 GB/s.",
            sentence(
                Cause.COMMUNICATION,
                Evidence("bus_bandwidth", 24.74, "GB/s", 110.66, [0, 1]),
                Evidence("expected_bus_bandwidth", 331.99, "GB/s", None, [0, 1]),
            ),
        ),
        (
            "The same rank computes longer than its peers in every step: its kernels take 2 times as long as its "
            "peers', for 100.0% of kernel time.",
            sentence(
                Cause.STRAGGLER,
                Evidence("share_of_difference_by_more_kernels", 0.0, "ratio", 0.5, [3]),
                Evidence("kernels_slower_by", 2.0, "times", ranks=[3]),
                Evidence("share_of_time_slower_by_about_that", 1.0, "ratio", 0.8, [3]),
            ),
        ),
        ("Something new 3 steps.", sentence(Cause.MEMORY_BOUND, Evidence("something_new", 3.0, "steps"))),
        ("", sentence(Cause.MEMORY_BOUND, Evidence("mfu", 0.3, "ratio"))),
        (
            "Which limits them (arithmetic or memory) is not known.",
            sentence(Cause.COMPUTE_BOUND, Evidence("mfu", 0.3, "ratio"), device="cpu"),
        ),
    ],
)
def test_the_evidence_is_one_sentence_with_its_numbers(text: str, said: str) -> None:
    assert said == text


def with_telemetry(analysis: Analysis, basis: str) -> Analysis:
    fix = PredictedFix("less", 10.0, 2.0, 0.15, basis)
    return replace(analysis, verdict=replace(analysis.verdict, cause=Cause.EVALUATION, evidence=[], fix=fix))


def test_a_loss_that_only_the_records_show_says_of_how_many_steps() -> None:
    analysis = example.with_job_time(ANALYSIS)
    assert evidence_sentence(with_telemetry(analysis, "telemetry")) == (
        "Training stops during evaluation: measured in the records of 34 steps."
    )
    assert evidence_sentence(with_telemetry(analysis, "replay")) == "Training stops during evaluation."


def test_a_job_without_a_gpu_hears_nothing_of_one() -> None:
    causes = set(Cause) - {Cause.LATENCY_BOUND}  # of kernels
    assert not [cause for cause in causes if "GPU" in sentence(cause, device="cpu")]


def test_every_metric_of_the_analyzer_has_a_clause_or_is_said_elsewhere() -> None:
    said_elsewhere = {
        "fraction_of_step", "share_of_training_time", "what_if_step", "mfu", "unexplained", "unexplained_loss",
        "steps_without_device", "largest_activity",
    }  # fmt: skip
    assert {metric.partition(": ")[0] for metric in analyzer_metrics()} - set(_CLAUSES) == said_elsewhere


def test_profiled_steps_are_no_evidence_of_a_job_without_a_trace() -> None:
    verdict = replace(ANALYSIS.verdict, cause=Cause.UNEXPLAINED, reasons=[], evidence=[], fix=None)
    assert evidence_sentence(replace(ANALYSIS, verdict=verdict, ranks=[])) == "The step records do not show why."
