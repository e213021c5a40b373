"""Parts of a page: small and readable whatever the analysis holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dash.development.base_component import Component

from stepscope.analyzer.blame.root_causes import INTERVAL
from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Evidence, TimeCategory
from stepscope.dashboard.components import timeline_canvas_panel, to_dash
from stepscope.workflow.panels.elements import Element, share_bar, stacked_bar
from stepscope.workflow.panels.kernels import kernels_panel
from stepscope.workflow.panels.ledger import ledger_panel
from stepscope.workflow.panels.verdict import breakdown_panel, verdict_card
from tests.dashboard import example_run as example


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """The example's analysis."""
    return example.make_analysis(example.make_timelines())


def nodes_of(element: Element) -> list[Component]:
    """Every Dash component in the tree."""
    component: Component = to_dash(element)
    found: list[object] = list(component._traverse())  # type: ignore[no-untyped-call] # as Dash leaves it
    return [component, *(node for node in found if isinstance(node, Component))]


def texts_of(element: Element) -> str:
    """All texts in the tree, one a line."""
    texts: list[str] = []
    for node in nodes_of(element):
        children = getattr(node, "children", None)
        texts += [child for child in (children if isinstance(children, list) else [children]) if isinstance(child, str)]
    return "\n".join(texts)


def test_a_job_of_512_ranks_is_a_page_of_few_nodes(analysis: Analysis) -> None:
    ranks = [replace(analysis.ranks[place % 8], rank=place) for place in range(512)]
    large = replace(analysis, ranks=ranks, job=replace(analysis.job, world_size=512, ranks=list(range(512))))
    ledger, timeline = ledger_panel(large), timeline_canvas_panel("large", large)

    assert len(nodes_of(ledger)) + len(nodes_of(timeline)) < 6_000
    for part in (ledger, timeline):
        assert "stepscope analyze RUN --json" in texts_of(part)


def test_a_small_job_has_all_its_ranks_and_the_sum_in_the_table(analysis: Analysis) -> None:
    texts = texts_of(ledger_panel(analysis)).splitlines()

    assert texts.count("all") == 2
    assert texts.count("7") == 2
    assert "stepscope analyze RUN --json" not in texts


def test_evidence_reads_as_words_and_percent(analysis: Analysis) -> None:
    evidence = [
        Evidence("fraction_of_step", 0.317, "ratio", 0.1),
        Evidence("pipeline_structural", 0.32, "ratio"),
        Evidence("pipeline_imbalance", 0.0, "ratio"),
    ]
    texts = texts_of(verdict_card(replace(analysis, verdict=replace(analysis.verdict, evidence=evidence))))
    lines = texts.replace("\u202f", " ").splitlines()

    assert [line for line in lines if line in ("Share of profiled time", "31.7%", "10%", "32.0%")] == [
        "Share of profiled time", "31.7%", "10%", "32.0%",
    ]  # fmt: skip
    assert "Bubble by the schedule alone" in lines
    assert "Bubble by uneven stages" not in lines


@pytest.mark.parametrize("share", [1e300, -3.0, float("inf")])
def test_no_bar_is_wider_than_its_track(share: float) -> None:
    bars = [
        share_bar(share, category=TimeCategory.WAIT, largest=0.5, interval=(0.0, share)),
        stacked_bar({TimeCategory.WAIT: share}, label="rank 0"),
    ]
    styles = [getattr(node, "style", None) or {} for bar in bars for node in nodes_of(bar)]
    widths = [style["width"] for style in styles if "width" in style]

    assert widths
    assert all(0 <= float(width.rstrip("%")) <= 100 for width in widths)


def test_the_interval_is_the_one_the_analysis_computes(analysis: Analysis) -> None:
    labels = [getattr(node, "label", None) or "" for node in nodes_of(breakdown_panel(analysis))]

    assert f"{INTERVAL[1] - INTERVAL[0]:.0%}" == "90%"
    assert any("90% interval" in label for label in labels)


def test_kernels_are_shown_with_their_findings_and_every_grouping(analysis: Analysis) -> None:
    panel = kernels_panel(analysis)
    assert panel is not None
    texts = texts_of(panel).splitlines()

    assert [texts.count(f"{code}") for code in ("unfused", "small grid", "tiny kernels")] == [1 + 4, 3, 3]
    assert {"Name", "Operator", "Module", "Call", "Copies"} <= set(texts)
    assert "aten::mm · Linear_3" in texts
    assert "registers" in texts


def test_groupings_that_a_trace_does_not_tell_have_no_tab(analysis: Analysis) -> None:
    bare = replace(analysis.roofline, by_operator=[], by_module=[], by_call=[], copies=[], findings=[])
    panel = kernels_panel(replace(analysis, roofline=bare))
    assert panel is not None
    assert [text for text in texts_of(panel).splitlines() if text in ("Name", "Operator", "Module", "Copies")] == [
        "Name"
    ]
    assert kernels_panel(replace(analysis, roofline=replace(bare, kernels=[]))) is None
