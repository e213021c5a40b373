"""Panels of the verdict: trace quality, verdict with evidence, root causes, and what fixes would save."""

from __future__ import annotations

from stepscope.core.documents.analysis import Analysis, RootCause, SecondaryCause, TraceQuality, WhatIf
from stepscope.core.documents.evidence import Evidence
from stepscope.core.text.numbers import UNKNOWN, counted, evidence_value, milliseconds, percent
from stepscope.core.text.verdict import clean_words, find_problems, quality_lines
from stepscope.core.text.wording import (
    action_words,
    cause_words,
    device_words,
    evidence_span,
    mesh_words,
    metric_words,
    reason_words,
)
from stepscope.core.vocabulary.causes import HEALTHY_CAUSES
from stepscope.core.vocabulary.palette import category_of_cause
from stepscope.workflow.panels.elements import (
    Column,
    Markup,
    join,
    more,
    name,
    panel,
    share_bar,
    some_ranks,
    swatch,
    table,
    tag,
)

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
        style=f"--edge:var(--heading-{category_of_cause(found.cause).value})",
    )


def _secondary(causes: list[SecondaryCause]) -> Markup | None:
    if not causes:
        return None
    items = [
        tag(
            "li",
            swatch(category_of_cause(c.cause)),
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


_WHAT_IF = [
    Column("Fix"),
    Column("Measured", True),
    Column("Step", True),
    Column("Gain", True),
    Column("Unprofiled", True),
    Column("Then binds"),
    Column("Replay error", True),
]


def root_causes(analysis: Analysis) -> Markup:
    """A bar a cause, the largest first."""
    rows = sorted((row for row in analysis.root_causes if row.fraction > 0), key=lambda row: -row.fraction)
    largest = max((max(row.fraction, *(row.interval or ())) for row in rows), default=0.0)
    items = [_row(row, largest, analysis.job.world_size) for row in rows]
    return panel(
        "What is the time spent on, and whose doing is it?",
        tag("ul", *items, class_="causes"),
        key="causes",
        note="Share of all ranks' time, with every wait charged to whoever was late; the line is the 90 % interval.",
    )


def what_if(analysis: Analysis) -> Markup | None:
    """The predicted step with one cause removed; nothing when nothing was replayed."""
    if not analysis.what_if:
        return None
    rows = [_fix(fix) for fix in analysis.what_if]
    body = table(_WHAT_IF, rows, num_all=len(rows), what="fixes")
    note = (
        "The job replayed with one cause removed; the replay error is that of the replay with nothing changed. "
        "Measured is of the steps replayed: those whose waits began before the traces are left out."
    )
    return panel("What would fixing it buy?", body, key="what-if", note=note)


def _row(row: RootCause, largest: float, world_size: int) -> Markup:
    heading = category_of_cause(row.cause)
    details = [some_ranks(row.ranks, world_size=world_size)] if row.ranks else []
    details += [reason_words(reason) for reason in row.reasons]
    a_step = "" if row.ms_per_step is None else f"{milliseconds(row.ms_per_step)} a step"
    return tag(
        "li",
        tag("span", swatch(heading), " ", cause_words(row.cause)),
        share_bar(row.fraction, heading=heading, largest=largest, interval=row.interval),
        tag("b", percent(row.fraction), class_="num"),
        tag("span", a_step, class_="num"),
        tag("span", " · ".join(details), class_="note"),
    )


def _fix(fix: WhatIf) -> list[str | Markup]:
    change = tag("span", f" {fix.change}", class_="note") if fix.change else None
    return [
        join(cause_words(fix.fix), change),
        milliseconds(fix.measured_step_ms),
        milliseconds(fix.step_ms),
        percent(fix.gain),
        milliseconds(fix.calibrated_step_ms),
        UNKNOWN if fix.binds_next is None else cause_words(fix.binds_next),
        percent(fix.replay_error),
    ]
