"""`--fail-on` is parsed as documented, and a gate fails only if the confidence interval says so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.gates import COLLECTIVE_KINDS, METRICS, parse_gate_conditions
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.documents.analysis import Collective, KernelTime
from stepscope.core.documents.comparison import Gate, GateOutcome
from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope_reference import PAGES
from tests.analyzer.compare.runs import make_run


def gate(text: str, a: RunRecord | list[RunRecord], b: RunRecord | list[RunRecord]) -> Gate:
    left, right = (side if isinstance(side, list) else [side] for side in (a, b))
    (judged,) = compare_runs(
        left, right, names=("a", "b"), assumed_spread=0.01, conditions=parse_gate_conditions(text)
    ).gates
    return judged


def test_conditions_are_split_at_commas_but_not_within_a_regular_expression() -> None:
    found = parse_gate_conditions(
        "step_time:+3%, mfu:-2.5%,kernel:gemm{1,2},x:+10%,collective:all_reduce:+5ms,heading:wait:-1%"
    )
    assert [(c.metric, c.limit, c.unit) for c in found] == [
        ("step_time", 3.0, "%"),
        ("mfu", -2.5, "%"),
        ("kernel:gemm{1,2},x", 10.0, "%"),
        ("collective:all_reduce", 5.0, "ms"),
        ("heading:wait", -1.0, "%"),
    ]
    assert found[0].text == "step_time:+3%"


@pytest.mark.parametrize(
    "text",
    ["", "step_time", "step_time:3%", "step_time:+3", "step_time:+x%", "steptime:+3%",
     "heading:nothing:+3%", "cause:wait:+3%", "step_time:+3% step_time:+4%"],
)  # fmt: skip
def test_a_wrong_condition_says_where_the_metrics_are_listed(text: str) -> None:
    with pytest.raises(UsageError, match=r"ee Gate metrics \(documentation\)") as caught:
        parse_gate_conditions(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("text", "next_step"),
    [
        ("mfu:+3ms", "give its limit in %"),
        ("kernel:(:+3%", "correct the expression"),
        ("collective:gossip:+3%", 'unknown collective kind "gossip"; known: all_reduce, all_gather, '),
        ("heading:bubbel:+3%", 'did you mean "heading:bubble"?'),
    ],
)
def test_a_wrong_condition_says_what_to_do(text: str, next_step: str) -> None:
    with pytest.raises(UsageError, match=re.escape(next_step)):
        parse_gate_conditions(text, option="--gate")


def test_the_document_lists_every_metric() -> None:
    text = PAGES["gate metrics"]()
    assert [name for name in (*METRICS, *COLLECTIVE_KINDS) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("metric", [metric for metric in METRICS if not metric.isupper() and ":" not in metric])
def test_every_listed_metric_is_judged(metric: str) -> None:
    run = make_run(100.0, 100.2, mfu=0.4)
    assert gate(f"{metric}:+3%", run, run).outcome in (GateOutcome.PASSED, GateOutcome.NOT_MEASURED)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused_in_one_line(text: str) -> None:
    try:
        answer: object = parse_gate_conditions(text)
    except UsageError as error:
        answer = error
    assert isinstance(answer, list) or "\n" not in str(answer)


def test_a_sure_regression_fails() -> None:
    judged = gate("step_time:+3%", make_run(100.0, 100.1), make_run(110.0, 110.1))
    assert judged.outcome is GateOutcome.FAILED
    assert judged.threshold == pytest.approx(3.0015)
    assert judged.summary.startswith("step_time 100 -> 110 ms, change +10 (")


def test_a_change_whose_interval_holds_the_limit_is_inconclusive_and_says_what_it_takes() -> None:
    judged = gate("step_time:+3%", make_run(100.0, 100.1), make_run(104.0, 104.1))
    assert judged.outcome is GateOutcome.INCONCLUSIVE
    assert judged.needed_runs is not None
    assert f"it would take {judged.needed_runs} runs a side" in judged.summary
    spread = [-1.0, -0.5, 0.0, 0.5, 1.0]
    decided = gate("step_time:+3%", [make_run(100.0 + s) for s in spread], [make_run(106.0 + s) for s in spread])
    assert decided.outcome is GateOutcome.FAILED


def test_a_gate_passes_when_the_interval_is_below_the_limit() -> None:
    assert gate("step_time:+3%", make_run(100.0, 100.1), make_run(100.0, 100.1)).outcome is GateOutcome.PASSED
    assert gate("step_time:+3%", make_run(100.0, 100.1), make_run(50.0, 50.1)).outcome is GateOutcome.PASSED


def test_a_fall_is_judged_by_a_minus() -> None:
    a, b = make_run(100.0, 100.1, mfu=0.40), make_run(100.0, 100.1, mfu=0.30)
    assert gate("mfu:-5%", a, b).outcome is GateOutcome.FAILED
    assert gate("mfu:-5%", b, a).outcome is GateOutcome.PASSED
    assert gate("step_time:-0%", make_run(100.0, 100.1), make_run(90.0, 90.1)).outcome is GateOutcome.FAILED


def test_a_percentage_of_what_was_not_there_is_of_the_step() -> None:
    a = make_run(100.0, 100.0, ledger={TimeCategory.COMPUTE_BOUND: 1.0})
    b = make_run(120.0, 120.0, ledger={TimeCategory.COMPUTE_BOUND: 5 / 6, TimeCategory.DATA_LOADING: 1 / 6})
    judged = gate("heading:data_loading:+3%", a, b)
    assert judged.outcome is GateOutcome.FAILED
    assert judged.threshold == pytest.approx(3.0)


def test_a_bare_name_is_the_cause_where_a_category_has_the_same() -> None:
    shares = {TimeCategory.COMPUTE_BOUND: 0.5, TimeCategory.COMMUNICATION: 0.5}
    run = make_run(100.0, 100.0, ledger=shares, causes={Cause.COMPUTE_BOUND: 0.8, Cause.COMMUNICATION: 0.2})
    assert gate("communication:+3%", run, run).difference.a == pytest.approx(20.0)
    assert gate("heading:communication:+3%", run, run).difference.a == pytest.approx(50.0)


def test_kernels_are_added_up_over_what_the_expression_finds() -> None:
    def kernels(ms: float) -> list[KernelTime]:
        return [
            KernelTime("gemm_a", 30, ms, TimeCategory.COMPUTE_BOUND, "model"),
            KernelTime("gemm_b", 30, 30.0, TimeCategory.COMPUTE_BOUND, "model"),
            KernelTime("norm", 30, 30.0, TimeCategory.MEMORY_BOUND, "model"),
        ]

    a, b = make_run(100.0, 100.0, kernels=kernels(30.0)), make_run(100.0, 100.0, kernels=kernels(90.0))
    judged = gate("kernel:^gemm:+50%", a, b)
    assert (judged.difference.a, judged.difference.b) == (20.0, 40.0)
    assert judged.outcome is GateOutcome.FAILED
    assert gate("kernel:nothing:+5%", a, b).outcome is GateOutcome.NOT_MEASURED


def test_a_collectives_gate_is_about_its_transfers_and_not_about_waiting() -> None:
    def ring(transfer: float, wait: float) -> Collective:
        return Collective("0,1", "dp", "all_reduce", 2**20, 3, 1.0, 1.0, None, transfer, wait, 0.0, None, None)

    a, b = make_run(100.0, 100.0, collectives=[ring(30, 0)]), make_run(100.0, 100.0, collectives=[ring(30, 90)])
    assert gate("collective:all_reduce:+20%", a, b).outcome is GateOutcome.PASSED
    slow = make_run(100.0, 100.0, collectives=[ring(60, 0)])
    assert gate("collective:all_reduce:+20%", a, slow).outcome is GateOutcome.FAILED
