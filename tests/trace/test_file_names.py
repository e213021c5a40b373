"""Names of trace files as their writers form them: rank, place in the parallel dimensions, capture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.text.wording import place_words
from stepscope.trace.file_names import MAX_RANK, natural_order, ranks_by_name, read_file_name


@pytest.mark.parametrize(
    ("name", "rank", "place"),
    [
        ("1790000000.1234567-TP-10.trace.json.gz", None, "TP10"),  # SGLang
        ("pre-1758513624.4085546-TP-3-DP-0-PP-1-EP-3-DECODE.trace.json.gz", None, "TP3-DP0-PP1-EP3"),
        ("cuda_graph_capture-EagleRunner-TP-3.json.gz", None, "TP3"),
        ("warmup_dp0_pp1_tp3_dcp0_ep0_rank7.1773709679453551615.pt.trace.json.gz", 7, "DP0-PP1-TP3-DCP0-EP0"),  # vLLM
        ("vllm-abc12-rank-3.1773709679453551615.pt.trace.json.gz", 3, ""),
        ("rank-3.json.gz", 3, ""),  # Megatron-LM
        ("iteration_10/rank3_trace.json", 3, ""),  # torchtitan
        ("primus-megatron-exp[llama2-70b-run1]-rank[3].1694128201545.pt.trace.json", 3, ""),
        ("trace-rank-12.json", 12, ""),  # TensorRT-LLM
        ("profile_trace_rank_7_annotation_iteration_1.json.gz", 7, ""),  # xDiT, split by TraceLens
        ("node17_4711.1694128201545000000.pt.trace.json", None, ""),  # tensorboard_trace_handler
        ("worker3_step_12.1694128201545.pt.trace.json.gz", 3, ""),
        ("job-worker-3_4008.1694128201545.pt.trace.json", None, ""),  # a Kubernetes pod and a process
        ("worker_3.1694128201545.pt.trace.json", 3, ""),
        ("rank_3/host_4711.1694128201545.pt.trace.json", 3, ""),
        ("local_rank_3/trace.json", None, ""),
        ("DP0-TP3-PP1-EP2.json", None, "DP0-TP3-PP1-EP2"),
        ("tp_rank_3_pp_rank_1.json", None, "TP3-PP1"),
        ("global_rank_5.json", 5, ""),
        ("node_rank_1_local_rank_3.json", None, ""),
        ("mp_rank_00_trace.json", None, ""),
        ("deepseek-r1.json", None, ""),
        ("DeepSeek-R1-TP-2.trace.json.gz", None, "TP2"),
        ("reward_ep3.json", None, ""),
        ("rank99999999.json", None, ""),
        ("chunk-TP-0/trace.json", None, ""),
    ],
)
def test_a_name_gives_the_rank_or_the_place_that_its_writer_put_there(name: str, rank: int | None, place: str) -> None:
    found = read_file_name(f"/runs/rank7/traces/{name}")
    assert (found.rank, place_words(found.place)) == (rank, place)


def _ranks(*names: str) -> list[int | None]:
    return ranks_by_name([read_file_name(name) for name in names])


def test_the_only_varying_dimension_gives_the_rank() -> None:
    assert _ranks(*(f"1790000000.1-TP-{rank}.trace.json.gz" for rank in range(12))) == list(range(12))
    assert _ranks("a-TP-0-PP-0.json", "a-TP-1-PP-0.json") == [0, 1]
    assert _ranks("TP-0.json", "TP-3.json") == [0, 3]
    assert _ranks("x-TP-3.json") == [3]


def test_places_in_several_dimensions_do_not_give_the_rank() -> None:
    assert _ranks("TP-0-PP-0.json", "TP-0-PP-1.json", "TP-1-PP-0.json", "TP-1-PP-1.json") == [None] * 4
    assert _ranks("TP-0-PP-1.json", "TP-1-PP-1.json") == [None, None]
    assert _ranks("TP-0.json", "TP-1-PP-0.json") == [None, None]


def test_sizes_are_no_indices() -> None:
    assert _ranks("llama-tp8.json") == [None]
    assert _ranks("llama-tp4.json", "llama-tp8.json") == [None, None]
    assert _ranks("llama_tp8_rank0.json", "llama_tp8_rank1.json") == [0, 1]


def test_a_rank_that_replicas_share_is_not_the_jobs() -> None:
    first, second = "dp0_pp0_tp0_dcp0_ep0_rank0.json", "dp1_pp0_tp0_dcp0_ep0_rank0.json"
    assert _ranks(first, second) == [None, None]
    assert _ranks(first, "dp0_pp0_tp1_dcp0_ep0_rank1.json") == [0, 1]


def test_ranks_that_machines_share_are_not_the_jobs() -> None:
    assert _ranks("node0_rank0.json", "node0_rank1.json", "node1_rank0.json") == [None] * 3
    assert _ranks("node0/rank0.json", "node1/rank0.json") == [None, None]
    assert _ranks("node0_rank0.json", "node1_rank1.json") == [0, 1]


def test_names_are_ordered_by_their_numbers() -> None:
    names = ["b-TP-10.json", "b-TP-2.json", "a-TP-11.json", "b-TP-02.json"]
    sorted(["9" * 5000, "1" * 5000], key=natural_order)
    assert sorted(names, key=natural_order) == ["a-TP-11.json", "b-TP-02.json", "b-TP-2.json", "b-TP-10.json"]


@given(st.lists(st.text(max_size=40) | st.from_regex(r"(tp|dp|rank|step|r)[-_]?\d{0,12}.{0,12}"), max_size=5))
def test_any_name_can_be_read_and_ordered(names: list[str]) -> None:
    read = [read_file_name(name) for name in names]
    assert all(name.rank is None or 0 <= name.rank <= MAX_RANK for name in read)
    ranks = ranks_by_name(read)
    assert len(ranks) == len(names)
    sorted(names, key=natural_order)
    sorted(name.capture for name in read)
