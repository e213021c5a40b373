"""Analyses of recorded traces meet their known truth, and every public trace gives a result or one line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis, RankLedger
from stepscope.core.errors import StepscopeError
from stepscope.core.vocabulary import (
    COMPUTE_CATEGORIES,
    EXPOSED_COMMUNICATION_CATEGORIES,
    IDLE_CATEGORIES,
    Cause,
    TimeCategory,
)
from stepscope.workflow.analyze import analyze
from stepscope.workflow.inputs.trace_files import open_stamped

pytestmark = pytest.mark.shared

HALF_A_POINT = 0.005

CASES = (
    "ddp",
    "fsdp",
    "tp",
    "pp_few",
    "pp_many",
    "slow_loader",
    "launch_bound",
    "memory_bound",
    "straggler",
    "ckpt_stall",
    "fsdp_p2poff",
)

GROUPS = {
    "compute": COMPUTE_CATEGORIES,
    "exposed_comm": EXPOSED_COMMUNICATION_CATEGORIES,
    "comm_wait": (TimeCategory.WAIT, TimeCategory.BUBBLE),
    "comm_transfer": (TimeCategory.COMMUNICATION,),
    "copy": (TimeCategory.COPY,),
    "idle": IDLE_CATEGORIES,
}
"""Words of the truth file -> the headings that they stand for."""


@cache
def analysis_of(path: Path, *, whole_file: bool = False) -> Analysis:
    return analyze([str(path)], whole_file=whole_file, keep=False).analysis


def share(rank: RankLedger, headings: Iterable[TimeCategory]) -> float:
    return sum(rank.ledger[heading] for heading in headings)


def span_share(rank: RankLedger, headings: Iterable[TimeCategory]) -> float:
    """Share of the file's span, from first to last device activity, as other tools take it: all time beyond is idle."""
    assert rank.span_ms is not None
    beyond = rank.window_ms - rank.span_ms if TimeCategory.IDLE_OTHER in headings else 0.0
    return (share(rank, headings) * rank.window_ms - beyond) / rank.span_ms


def assert_adds_up(analysis: Analysis) -> None:
    assert sum(analysis.ledger.values()) == pytest.approx(1.0, abs=1e-3)
    for rank in analysis.ranks:
        assert sum(rank.ledger.values()) == pytest.approx(1.0, abs=1e-3)
        assert len(rank.steps) >= 1
        for step in rank.steps:
            assert sum(step.ledger.values()) == pytest.approx(1.0, abs=1e-3)
    assert sum(row.fraction for row in analysis.root_causes) == pytest.approx(1.0, abs=1e-6)
    assert 0.0 <= analysis.verdict.confidence <= 1.0


@pytest.fixture(scope="module", autouse=True)
def _each_file_is_read_once() -> Iterator[None]:
    """Folders hold files that are also analysed alone, and some files are booked by steps and whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepscope.workflow.fan_out.tasks.open_stamped", cache(open_stamped))
        yield
        analysis_of.cache_clear()


@pytest.fixture(scope="module")
def truth(shared_traces: Path) -> dict[str, Any]:
    text = (shared_traces / "h100x2" / "truth.json").read_text()
    truth: dict[str, Any] = json.loads(text)
    assert sorted(truth) == sorted(CASES)
    return truth


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_meets_its_truth(case: str, shared_traces: Path, truth: dict[str, Any]) -> None:
    analysis = analysis_of(shared_traces / "h100x2" / case)
    assert_adds_up(analysis)
    assert analysis.verdict.cause in truth[case]["cause"]
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    for rank, expected in zip(analysis.ranks, truth[case]["ranks"], strict=True):
        assert len(rank.steps) == expected["steps"]
        assert rank.window_ms == pytest.approx(expected["window_ms"], rel=1e-3)
        for group, headings in GROUPS.items():
            found = share(rank, headings)
            assert found == pytest.approx(expected[group], abs=HALF_A_POINT), f"rank {rank.rank}: {group}"


def test_late_hosts_do_not_hide_slow_links(shared_traces: Path) -> None:
    """Traffic over host memory: the rule that transfers keep their charge though the host was late as well."""
    causes = {
        row.cause.value: row.fraction for row in analysis_of(shared_traces / "h100x2" / "fsdp_p2poff").root_causes
    }
    assert causes["communication"] == pytest.approx(0.343, abs=0.02)
    assert causes["communication"] > 1.5 * causes["host_bound"]


def test_waiting_for_a_rank_that_fell_behind_earlier_in_the_step_is_explained(shared_traces: Path) -> None:
    """Its collectives run behind its compute: since the last one it only did ordinary work (4.8 and 3.4 % before)."""
    for case, most in (("slow_loader", 0.002), ("fsdp_p2poff", 0.01)):
        causes = {row.cause.value: row.fraction for row in analysis_of(shared_traces / "h100x2" / case).root_causes}
        assert causes.get("unexplained", 0.0) < most, case


def test_the_straggler_and_the_starved_rank_are_named(shared_traces: Path) -> None:
    assert analysis_of(shared_traces / "h100x2" / "straggler").verdict.ranks == [1]
    assert 1 in analysis_of(shared_traces / "h100x2" / "tp").verdict.ranks


WHOLE_FILE_SHARES = {
    "tracelens/h100_gaunernst_bert-small-uncased__1016001.json.gz": (92.08, 7.86),
    "tracelens/h100_Falconsai_nsfw_image_detection__1016002.json.gz": (83.79, 16.15),
    "tracelens/mi300_Falconsai_nsfw_image_detection__1016002.json.gz": (75.01, 24.99),
    "tracelens/h100_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (8.07, 91.50),
    "tracelens/mi355_vllm_graph_execution.json.gz": (0.24, 99.36),
    "tracelens/mi210_gpu_only_trace.json.gz": (10.64, 89.36),
    "hta/a100_2rank_rank0_nccl_args.json.gz": (76.16, 17.51),
    "tracelens/mi300x_8gpu_rank0_resnet_actckpt_rccl.json.gz": (2.96, 29.73),
    "hta/trace_diff_control_a100.json.gz": (16.36, None),
    "hta/trace_diff_test_v100.json.gz": (3.66, None),
    "hta/a100_16rank_rank0_negative_queue.json.gz": (64.40, None),
}
"""Idle and compute in percent of first to last device activity, by an exact reading of the intervals."""


@pytest.mark.parametrize("name", WHOLE_FILE_SHARES)
def test_a_whole_files_idle_and_compute_are_exact(name: str, shared_traces: Path) -> None:
    (rank,) = analysis_of(shared_traces / "public" / name, whole_file=True).ranks
    idle, compute = WHOLE_FILE_SHARES[name]
    assert 100 * span_share(rank, IDLE_CATEGORIES) == pytest.approx(idle, abs=0.006)
    if compute is not None:
        assert 100 * span_share(rank, COMPUTE_CATEGORIES) == pytest.approx(compute, abs=0.006)


def test_all_reduces_of_symmetric_memory_are_communication_and_not_compute(shared_traces: Path) -> None:
    """The known figures (idle 86.27, compute 12.75) count only kernels named after NCCL as communication (22 us)."""
    path = shared_traces / "public" / "tracelens" / "b200_8gpu_rank0_eager.json.gz"
    (rank,) = analysis_of(path, whole_file=True).ranks
    assert 100 * span_share(rank, IDLE_CATEGORIES) == pytest.approx(86.27, abs=0.006)
    communication = span_share(rank, EXPOSED_COMMUNICATION_CATEGORIES)
    assert communication * (rank.span_ms or 0.0) == pytest.approx(2.1415, abs=0.001)
    without_nccl = communication - 0.022 / (rank.span_ms or 0.0)
    assert 100 * (span_share(rank, COMPUTE_CATEGORIES) + without_nccl) == pytest.approx(12.75, abs=0.01)


COMMUNICATION_US = {
    "hta/a100_2rank_rank0_nccl_args.json.gz": (660551.0, 46876.5, 39559.5),
    "tracelens/mi300x_8gpu_rank0_resnet_actckpt_rccl.json.gz": (86567.7, 71516.5, 55625.2),
    "hta/trace_diff_control_a100.json.gz": (None, 163535, 87921),
    "hta/trace_diff_test_v100.json.gz": (None, 251341, 73298),
    "hta/a100_16rank_rank0_negative_queue.json.gz": (None, 187870, 185317),
}
"""Span, communication and exposed communication, in microseconds."""


@pytest.mark.parametrize("name", COMMUNICATION_US)
def test_a_whole_files_communication_and_its_exposed_part_are_exact(name: str, shared_traces: Path) -> None:
    (rank,) = analysis_of(shared_traces / "public" / name, whole_file=True).ranks
    span_us, all_us, exposed_us = COMMUNICATION_US[name]
    window_us = rank.window_ms * 1e3
    exposed = share(rank, EXPOSED_COMMUNICATION_CATEGORIES)
    if span_us is not None:
        assert (rank.span_ms or 0.0) * 1e3 == pytest.approx(span_us, abs=0.06)
    assert exposed * window_us == pytest.approx(exposed_us, abs=0.6)
    assert (exposed + rank.hidden_communication) * window_us == pytest.approx(all_us, abs=0.6)


def test_the_eight_dlrm_ranks_meet_span_communication_and_overlap(shared_traces: Path) -> None:
    analysis = analysis_of(shared_traces / "public" / "param" / "dlrm_8rank_kineto", whole_file=True)
    assert_adds_up(analysis)
    known = [(13009, 5798, 4.5), (18749, 11336, 2.5), (11350, 3492, 7.9), (18853, 9774, 3.3)]
    for rank, (span_us, all_us, overlap) in zip(analysis.ranks[:4], known, strict=True):
        exposed = share(rank, EXPOSED_COMMUNICATION_CATEGORIES)
        assert (rank.span_ms or 0.0) * 1e3 == pytest.approx(span_us, abs=0.6)
        assert (exposed + rank.hidden_communication) * rank.window_ms * 1e3 == pytest.approx(all_us, abs=0.6)
        assert 100 * rank.hidden_communication / (exposed + rank.hidden_communication) == pytest.approx(
            overlap, abs=0.05
        )


def test_loader_workers_show_as_less_data_loading(shared_traces: Path) -> None:
    folder = shared_traces / "public" / "kineto"
    none, four = (analysis_of(folder / f"resnet50_num_workers_{n}.pt.trace.json.gz") for n in (0, 4))
    assert none.verdict.cause == "data_loading"
    assert four.ledger[TimeCategory.DATA_LOADING] < 0.02 < 0.2 < none.ledger[TimeCategory.DATA_LOADING]


PUBLIC = ("cpu3d", "hta", "kineto", "param", "torch213_gloo", "tracelens")


def analysis_or_refusal(path: Path) -> Analysis | StepscopeError:
    try:
        return analysis_of(path)
    except StepscopeError as error:
        return error


@pytest.mark.parametrize("folder", PUBLIC)
def test_every_public_file_and_folder_is_analysed_or_refused_in_one_line(folder: str, shared_traces: Path) -> None:
    root = shared_traces / "public" / folder
    within = sorted(path for path in root.iterdir() if path.is_dir() or folder not in ("cpu3d",))
    analysed = 0
    for path in [root, *within]:
        answer = analysis_or_refusal(path)
        if isinstance(answer, StepscopeError):
            assert "\n" not in str(answer)
            assert answer.exit_code == 3
            continue
        analysed += 1
        assert_adds_up(answer)
        assert answer.verdict.summary
    assert analysed


def test_lost_ranks_are_said(shared_traces: Path) -> None:
    analysis = analysis_of(shared_traces / "public" / "cpu3d" / "fsdp_i1f1b")
    assert analysis.job.missing_ranks == [3, 5, 6, 7]
    assert "missing_ranks" in [notice.code for notice in analysis.warnings]


def test_the_sleeping_rank_of_the_cpu_pipeline_is_found(shared_traces: Path) -> None:
    analysis = analysis_of(shared_traces / "public" / "cpu3d" / "fsdp_1f1b")
    assert analysis.verdict.cause == "host_bound"
    assert analysis.verdict.ranks[0] == 3  # the worst comes first


def test_a_what_if_tells_the_step_it_stands_on(shared_traces: Path) -> None:
    analysis = analyze([str(shared_traces / "h100x2" / "ckpt_stall")]).analysis
    prediction = next(entry for entry in analysis.what_if if entry.fix == Cause.CHECKPOINT)
    assert prediction.skipped_steps == [5]
    assert prediction.measured_step_ms is not None
    assert prediction.speedup == pytest.approx(prediction.measured_step_ms / prediction.step_ms, rel=0.02)
    assert "what_if_steps" in {notice.code for notice in analysis.warnings}
