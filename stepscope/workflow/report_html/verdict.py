"""What was found, on what, and how far can it be trusted? The head of the page."""

from __future__ import annotations

from stepscope.core.analysis import Analysis, Evidence, SecondaryCause, TraceQuality
from stepscope.core.causes import HEALTHY_CAUSES
from stepscope.core.counting import counted
from stepscope.core.palette import heading_of_cause
from stepscope.core.quality_lines import quality_lines
from stepscope.core.trace_doubts import clean_words, find_problems
from stepscope.core.words import (
    UNKNOWN,
    action_words,
    cause_words,
    device_words,
    evidence_span,
    evidence_value,
    mesh_words,
    metric_words,
    milliseconds,
    percent,
    reason_words,
)
from stepscope.workflow.report_html.bars import swatch
from stepscope.workflow.report_html.blocks import Column, more, some_ranks, table
from stepscope.workflow.report_html.markup import Markup, join, name, tag

MOST_ROWS = 20
_EVIDENCE = [Column("What it stands on"), Column("Value", True), Column("Named from", True), Column("Where")]


def head(title: str, analysis: Analysis) -> Markup:
    """The run and its size."""
    job = analysis.job
    words = [
        f"{len(job.ranks)} of {counted(job.world_size, 'rank')}",
        mesh_words(job.mesh),
        device_words(job),
        counted(job.num_steps, "step"),
    ]
    line = tag("p", " · ".join(name(part) for part in words if part), class_="note")
    return tag("header", tag("h1", name(title)), line)


def quality(analysis: Analysis) -> Markup:
    """Before any number: one line when clean, a list when not, and all that was counted."""
    problems = find_problems(analysis.job, analysis.trace_quality)
    if not problems:
        text = join(tag("strong", "Trace quality: clean. "), clean_words(analysis.trace_quality))
        clean = tag("p", tag("span", "✓ ", class_="good"), text)
        return tag("div", clean, _all_figures(analysis.trace_quality), id="quality", class_="quality")
    items = [tag("li", problem) for problem in problems]
    title = tag("strong", "Read the numbers with this in mind")
    counted = _all_figures(analysis.trace_quality)
    return tag("div", title, tag("ul", *items), counted, id="quality", class_="quality doubt")


def _all_figures(quality: TraceQuality) -> Markup:
    return tag("p", *(join(f"{about}: {line}. ") for about, line in quality_lines(quality).items()), class_="note")


def figures(analysis: Analysis) -> Markup:
    """The step and its use of the device."""
    job = analysis.job
    figures = [
        ("step, captured", milliseconds(job.step_ms)),
        ("step, unprofiled", milliseconds(job.unprofiled_step_ms)),
        ("MFU", percent(job.mfu)),
    ]
    shown = [tag("div", tag("dt", what), tag("dd", number)) for what, number in figures if number != UNKNOWN]
    return tag("dl", *shown, class_="kpis")


def verdict(analysis: Analysis) -> Markup:
    """The card that stands above all figures."""
    found = analysis.verdict
    world_size = analysis.job.world_size
    row = next((row for row in analysis.root_causes if row.cause == found.cause), None)
    figures = [] if row is None else [(percent(row.fraction), "of all ranks' time")]
    if row is not None and row.ms_per_step is not None:
        figures.append((milliseconds(row.ms_per_step), "of each step"))
    if found.ranks:
        figures.append((some_ranks(found.ranks, world_size=world_size), "concerned"))
    figures.append((percent(found.confidence, decimals=0), "confidence"))
    kind = "The job is healthy; what bounds it" if found.cause in HEALTHY_CAUSES else "Where the time goes"
    actions = [tag("li", action_words(action)) for action in found.actions[:MOST_ROWS]]
    evidence = [_evidence(row, world_size) for row in found.evidence[:MOST_ROWS]]
    return tag(
        "section",
        tag("p", kind, class_="note"),
        tag("h2", cause_words(found.cause), *(tag("span", reason_words(r), class_="reason") for r in found.reasons)),
        tag("div", *(tag("p", tag("b", number), tag("span", what)) for number, what in figures), class_="figures"),
        tag("p", found.summary, class_="summary"),
        join(tag("h3", "What to do first"), tag("ol", *actions)) if actions else None,
        table(_EVIDENCE, evidence, num_all=len(found.evidence), what="pieces of evidence") if evidence else None,
        _secondary(found.secondary),
        id="verdict",
        class_="verdict",
        style=f"--edge:var(--heading-{heading_of_cause(found.cause).value})",
    )


def _secondary(causes: list[SecondaryCause]) -> Markup | None:
    if not causes:
        return None
    items = [
        tag(
            "li",
            swatch(heading_of_cause(c.cause)),
            tag("b", cause_words(c.cause)),
            f" {percent(c.fraction)} ",
            c.summary,
        )
        for c in causes[:MOST_ROWS]
    ]
    left_out = more(len(causes) - MOST_ROWS, "causes")
    return join(tag("h3", "Worth knowing as well"), tag("ul", *items, class_="plain"), left_out)


def _evidence(evidence: Evidence, world_size: int) -> list[str]:
    threshold = UNKNOWN if evidence.threshold is None else evidence_value(evidence.threshold, evidence.unit)
    where = some_ranks(evidence.ranks, world_size=world_size) if evidence.ranks else "job"
    span = evidence_span(evidence)
    value = evidence_value(evidence.value, evidence.unit)
    return [
        name(metric_words(evidence.metric)),
        name(value),
        name(threshold),
        f"{where}, over {span}" if span else where,
    ]
