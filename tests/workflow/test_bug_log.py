"""Analysis of cases that users of other tools reported as wrong. Entry n: docs/explanation/trace-quality.md."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyzer.rank import view_rank
from stepscope.core.documents.analysis import Analysis
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.store.documents import encode_document
from stepscope.workflow.analyze import analyze
from stepscope.workflow.rank_views import view_files
from tests.trace.one_rank import read_trace
from tests.workflow.written_traces import STEPS, trace_document

Event = dict[str, Any]
Analyse = Callable[..., Analysis]


@pytest.fixture
def analysed(tmp_path: Path) -> Analyse:
    """The analysis of documents, one a rank."""

    def run(*documents: dict[str, Any], names: tuple[str, ...] = ()) -> Analysis:
        paths = []
        for place, document in enumerate(documents):
            path = tmp_path / (names[place] if names else f"rank{place}.json")
            path.write_text(json.dumps(document))
            paths.append(str(path))
        return analyze(paths, keep=False).analysis

    return run


def _alone(**options: Any) -> dict[str, Any]:
    return trace_document(0, world_size=1, **options)


def _kernels(document: dict[str, Any]) -> list[Event]:
    return [event for event in document["traceEvents"] if event["cat"] == "kernel"]


def _host(name: str, ts: float, dur: float, *, tid: int = 1, kind: str = "cuda_runtime", **args: Any) -> Event:
    told = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": kind, "name": name, "pid": 100, "tid": tid, "ts": ts, "dur": dur, "args": told}


def _device(name: str, ts: float, dur: float, correlation: int, *, tid: int = 7, **args: Any) -> Event:
    told = {"correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": told}


def _codes(analysis: Analysis) -> set[str]:
    return {notice.code for notice in analysis.warnings}


def test_kernels_before_their_launch_and_launches_lost_at_the_start_are_told(analysed: Analyse) -> None:  # entry 8
    document = _graph_document()
    launches = [event for event in document["traceEvents"] if event["name"] == "cudaGraphLaunch"]
    launches[1]["ts"] = 115  # its first kernel starts at 110
    document["traceEvents"].insert(0, _host("cudaLaunchKernel", -20, 2, correlation=90))
    analysis = analysed(document)
    quality = analysis.trace_quality
    assert (quality.early, quality.lost_at_start) == (1 / (3 * STEPS), 1)
    assert "early_kernels" in _codes(analysis)
    assert sum(analysis.ledger.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "nccldevkernel_x",
        "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
    ],
)
def test_communication_kernels_are_known_under_all_their_names(
    analysed: Analyse, name: str
) -> None:  # entries 12 and 15
    documents = [trace_document(rank) for rank in (0, 1)]
    for document in documents:
        for kernel in _kernels(document)[1::2]:
            kernel["name"], kernel["args"] = name, {"correlation": kernel["args"]["correlation"]}
    analysis = analysed(*documents)
    communication = (TimeCategory.COMMUNICATION, TimeCategory.WAIT, TimeCategory.COMMUNICATION_UNSPLIT)
    assert sum(analysis.ledger[heading] for heading in communication) == pytest.approx(50 / 90, abs=0.06)
    assert "no_communication" not in _codes(analysis)


def test_custom_all_reduces_match_by_their_order(analysed: Analyse) -> None:  # entry 15
    documents = [trace_document(rank, compute_us=30 + 15 * rank) for rank in (0, 1)]
    for document in documents:
        for kernel in _kernels(document)[1::2]:
            kernel["name"] = "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)"
            kernel["args"] = {"correlation": kernel["args"]["correlation"]}
    analysis = analysed(*documents)
    assert analysis.trace_quality.unmatched_collectives == 0
    assert analysis.ledger[TimeCategory.WAIT] == pytest.approx(3 * 15 / 2 / 280)  # rank 0 waits 15 us a step
    assert analysis.ledger[TimeCategory.COMMUNICATION] == pytest.approx(3 * 35 / 280)


def test_annotations_of_nccl_without_its_kernels_are_no_communication_and_a_warning(
    analysed: Analyse,
) -> None:  # entry 12
    documents = [trace_document(rank) for rank in (0, 1)]
    for document in documents:
        for kernel in _kernels(document)[1::2]:
            kernel.update(cat="user_annotation", name="nccl:all_reduce", pid=100, tid=1, args={})
    assert "no_communication" in _codes(analysed(*documents))


def test_amd_kernels_that_merely_begin_with_hip_are_compute(analysed: Analyse) -> None:  # entry 12
    document = _alone()
    for kernel in _kernels(document)[1::2]:
        kernel["name"], kernel["args"] = "hipCustomGemm", {"correlation": kernel["args"]["correlation"]}
    assert analysed(document).ledger[TimeCategory.COMMUNICATION_UNSPLIT] == 0


def test_a_job_of_several_ranks_without_communication_is_a_warning(analysed: Analyse) -> None:  # entry 12
    document = trace_document(0)
    document["traceEvents"] = [event for event in document["traceEvents"] if "nccl" not in event["name"]]
    assert "no_communication" in _codes(analysed(document))


@pytest.mark.parametrize("name", ["ncclDevKernel_Generic_4", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"])
def test_the_operation_comes_from_the_arguments_or_the_operator_never_from_the_name(
    tmp_path: Path, name: str
) -> None:  # entries 13, 14 and 24
    told: dict[str, Any] = {
        "Collective_name": "_allgather_base",
        "In_msg_nelems": 8,
        "Out_msg_nelems": 16,
        "dtype": "Half",
    }
    document = _alone()
    for kernel in _kernels(document)[1::2]:
        kernel["name"], kernel["args"] = name, {"correlation": kernel["args"]["correlation"]}
    launches = [event for event in document["traceEvents"] if event["name"] == "cudaLaunchKernelExC"]
    document["traceEvents"] += [
        _host("record_param_comms", call["ts"] - 0.5, 3, kind="cpu_op", External_id=7, **told) for call in launches
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    calls = view_rank(read_trace(path), 0).calls
    assert {(call.kind, call.num_bytes, call.described) for call in calls} == {("all_gather", 32, True)}
    assert "RING" not in repr(calls)


def test_files_that_tell_no_rank_are_ranks_by_order_and_this_is_told(analysed: Analyse) -> None:  # entry 16
    documents = [trace_document(None), trace_document(None)]
    assert analysed(documents[0], names=("a.json",)).job.ranks == [0]
    analysis = analysed(*documents[:1], trace_document(None, compute_us=40), names=("a.json", "b.json"))
    assert (analysis.job.ranks, "rank_assumed" in _codes(analysis)) == ([0, 1], True)


def test_collectives_match_although_external_ids_differ_between_ranks(analysed: Analyse) -> None:  # entry 18
    documents = [trace_document(rank) for rank in (0, 1)]
    for rank, document in enumerate(documents):
        for number, kernel in enumerate(_kernels(document)):
            kernel["args"]["External id"] = 1000 * rank + number
    assert analysed(*documents).trace_quality.unmatched_collectives == 0


def _graph_document() -> dict[str, Any]:
    """Each step launches one graph: three kernels with gaps of 2 us between them."""
    document = _alone()
    events: list[Event] = []
    for step in range(STEPS):
        at = 100.0 * step
        events += [
            _host(f"ProfilerStep#{step}", at, 90, kind="user_annotation"),
            _host("cudaGraphLaunch", at + 1, 5, correlation=9 + step),
            *(_device(f"gemm{node}", at + 10 + 30 * node, 28, 9 + step) for node in range(3)),
        ]
    return document | {"traceEvents": events}


def test_kernels_of_a_graph_count_and_gaps_inside_it_are_the_devices(analysed: Analyse) -> None:  # entries 20 and 22
    analysis = analysed(_graph_document())
    quality = analysis.trace_quality
    assert (quality.graph_share, quality.unlinked) == (1.0, 0.0)
    busy = sum(
        analysis.ledger[h] for h in TimeCategory if h.value.endswith("_bound") and h is not TimeCategory.HOST_BOUND
    )
    assert busy + analysis.ledger[TimeCategory.COMPUTE_OTHER] == pytest.approx(3 * 84 / 288)
    assert analysis.ledger[TimeCategory.DEVICE_GAP] == pytest.approx((3 * 4 + 2 * 12 - 2 * 1) / 288, abs=0.05)


def test_a_graph_that_ran_longer_than_its_kernels_is_told(analysed: Analyse) -> None:  # entry 23
    document = _graph_document()
    assert "graph_loops" not in _codes(analysed(document))
    document["traceEvents"].append(_host("cudaStreamSynchronize", 210, 5000, correlation=0))
    assert "graph_loops" in _codes(analysed(document))


def test_steps_without_device_activity_forbid_a_verdict(analysed: Analyse) -> None:  # entry 21
    document = _alone()
    document["traceEvents"] += [
        _host(f"ProfilerStep#{step}", 60 + 20 * (step - STEPS), 20, kind="user_annotation") for step in range(3, 20)
    ]
    analysis = analysed(document)
    assert analysis.trace_quality.steps_without_device == 17 / 20
    assert analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert "85% of the marked steps have no device activity" in analysis.verdict.summary
    assert "empty_steps" in _codes(analysis)


def test_one_record_that_takes_most_of_several_steps_forbids_a_verdict(analysed: Analyse) -> None:  # entry 21
    document = _alone()
    _kernels(document)[2]["dur"] = 30_000
    analysis = analysed(document)
    assert analysis.trace_quality.largest_activity == pytest.approx(180 / 280)
    assert analysis.verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert "large_activity" in _codes(analysis)


def test_kernels_belong_to_the_step_that_any_thread_launched_them_in(analysed: Analyse) -> None:  # entry 25
    document = _alone()
    for event in document["traceEvents"]:
        if event["cat"] == "cuda_runtime":
            event["tid"] = 2  # autograd's thread; the mark stands on thread 1
    document["traceEvents"].append(
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#0", "pid": 0, "tid": 7, "ts": 110, "dur": 1}
    )
    assert [step.ms for step in analysed(document).ranks[0].steps] == [0.1, 0.1, pytest.approx(0.08)]


def test_the_marked_and_the_booked_steps_are_told(analysed: Analyse) -> None:  # entries 26, 27 and 28
    document = _alone()
    document["traceEvents"].append(_host("ProfilerStep#3", 60, 20, kind="user_annotation"))
    quality = analysed(document).trace_quality
    assert (quality.steps_marked, quality.steps_used, quality.steps_complete) == ([0, 1, 2, 3], [0, 1, 2], 3)


def test_the_ledger_adds_up_whatever_overlaps(analysed: Analyse) -> None:  # entry 29
    document = _alone()
    overlapping = [_device("memcpy-like", 105 + 100 * step, 70, 0, tid=9) for step in range(STEPS)]
    document["traceEvents"] += overlapping
    analysis = analysed(document)
    assert sum(analysis.ledger.values()) == pytest.approx(1, abs=1e-9)
    assert all(sum(step.ledger.values()) == pytest.approx(1, abs=1e-9) for step in analysis.ranks[0].steps)
    booked = {heading: pytest.approx(us / 280) for heading, us in _OVERLAPPED_US.items()}
    assert {heading: share for heading, share in analysis.ledger.items() if share} == booked


_OVERLAPPED_US = {
    TimeCategory.MEMORY_BOUND: 65 + 70 + 70,  # the first 5 us lie before the first booked step
    TimeCategory.COMMUNICATION_UNSPLIT: 3 * 15,
    TimeCategory.IDLE_OTHER: 2 * 15,
}
"""Each moment once: compute hides communication."""


def test_the_order_of_events_in_the_file_changes_nothing(analysed: Analyse) -> None:  # entry 35
    document = _alone()
    document["traceEvents"].append(_device("tiny", 172, 0.001, 6, tid=8))
    shuffled = document | {
        "traceEvents": random.Random(5).sample(document["traceEvents"], len(document["traceEvents"]))
    }
    assert replace(analysed(shuffled), warnings=[]) == replace(analysed(document), warnings=[])


def test_a_memset_without_its_call_is_unlinked_not_fatal(analysed: Analyse) -> None:  # entry 39
    document = _alone()
    document["traceEvents"].append(_device("Memset (Device)", 205, 1, 77) | {"cat": "gpu_memset"})
    assert analysed(document).trace_quality.unlinked == pytest.approx(1 / 7)


def test_a_trace_with_nothing_to_book_says_why(analysed: Analyse) -> None:  # entry 40
    document = _alone() | {"traceEvents": [_host("flush", 1, 2, kind="overhead")]}
    with pytest.raises(DataError, match="holds neither device activities nor host operators"):
        analysed(document)


def test_one_unusable_file_does_not_lose_the_others(tmp_path: Path) -> None:  # entries 40 and 45
    foreign = [{"ph": "X", "cat": "FEE", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    (tmp_path / "other.json").write_text(json.dumps(foreign))
    (tmp_path / "rank0.json").write_text(json.dumps(_alone()))
    found = view_files([str(tmp_path / "other.json"), str(tmp_path / "rank0.json")], whole_file=False)
    assert list(found.views) == [0]
    assert "not one of PyTorch" in found.notices[0].message


def test_what_is_unknown_of_clocks_and_capture_is_null_in_the_document_never_0(analysed: Analyse) -> None:
    quality = json.loads(encode_document(analysed(_alone())))["trace_quality"]
    unknown = ("clock_residual_us", "profiler_distortion", "unmatched_collectives")
    assert [quality[name] for name in unknown] == [None, None, None]


def test_doubled_step_marks_are_one(analysed: Analyse) -> None:
    document = _alone()
    document["traceEvents"] += [event for event in document["traceEvents"] if "ProfilerStep" in event["name"]]
    analysis = analysed(document)
    assert (analysis.job.num_steps, analysis.job.step_ms) == (3, 0.1)


@pytest.mark.shared
def test_a_recorded_decode_through_graphs_is_not_empty(shared_traces: Path) -> None:  # entry 44
    path = shared_traces / "public/tracelens/mi300x_sglang_decode_cudagraph.json.gz"
    analysis = analyze([str(path)], keep=False).analysis
    assert analysis.trace_quality.graph_share > 0.5
    assert len(analysis.roofline.kernels) > 10
