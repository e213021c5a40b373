"""Plotly figures of a run, in light and dark, in the palette and with the words of the dashboard's panels.

breakdown    time breakdown of each rank, or of the job alone
steps        duration of all recorded steps, with captured ones and anomalies marked
timeline     what each rank did when, in the profiled steps
ranks        how late each rank arrives at its collectives, and the time breakdown's waits beside it
roofline     kernels by time, coloured by what limits them, with their share of the roofline
collectives  bus bandwidth of collectives by size, against what the link should reach
memory       GPU and host memory over all recorded steps
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import short_kernel_name, unknown_name
from stepscope.core.text.wording import category_words, is_on_cpu
from stepscope.core.vocabulary import CATEGORY_ORDER, TimeCategory
from stepscope.workflow.panels.palette import DARK, LIGHT, PAGE_DARK, PAGE_LIGHT, pattern

if TYPE_CHECKING:
    import pandas as pd

    from stepscope.api.run import Run

THEMES = {"light": (LIGHT, PAGE_LIGHT, "#1f1f1f", "#e3e3e3"), "dark": (DARK, PAGE_DARK, "#e8e8e8", "#454545")}
"""Colours of the categories, of the page, of text and of the grid."""
_PATTERNS = {"solid": "", "hatch": "/", "dots": "."}
_MAX_POINTS = 4000
"""Of a line; of more steps each bucket keeps its lowest and highest."""
_MAX_KERNELS = 20
_TIMELINE_COLUMNS, _TIMELINE_CELLS = 1500, 400_000
_MEMORY = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "host_memory_bytes")


def figure(run: Run, name: str, theme: str = "light") -> go.Figure:
    """Draw a figure of a run.

    Raises:
        UsageError: there is no such figure or theme.
        DataError: the run does not have what it shows.
    """
    if name not in FIGURES:
        raise unknown_name("figure", str(name), FIGURES)
    if theme not in THEMES:
        raise unknown_name("theme", str(theme), THEMES)
    return _laid_out(FIGURES[name](run, theme), theme)


def _laid_out(drawn: go.Figure, theme: str) -> go.Figure:
    _, page, text, grid = THEMES[theme]
    axis = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid}
    rows_of_legend = -(-len(drawn.data) // _LEGEND_COLUMNS)
    return (
        drawn.update_layout(
            template="none",
            paper_bgcolor=page,
            plot_bgcolor=page,
            font={"color": text, "family": "system-ui, sans-serif", "size": 13},
            margin={"l": 70, "r": 70, "t": 50, "b": 80 + _LEGEND_ROW_PIXELS * rows_of_legend},
            legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "traceorder": "normal"},
            title={"x": 0.01, "xanchor": "left"},
            hoverlabel={"bgcolor": page, "font": {"color": text}},
        )
        .update_xaxes(**axis)
        .update_yaxes(**axis)
    )


_LEGEND_COLUMNS, _LEGEND_ROW_PIXELS = 3, 20


def _breakdown(run: Run, theme: str) -> go.Figure:
    ranks = run.breakdown(by="rank")
    if ranks.empty:
        raise DataError("has no profiled step to break down", where=", ".join(run.paths))
    shown = [category for category in CATEGORY_ORDER if (ranks[category.value] > 0).any()]
    is_named = len(ranks) <= _MAX_NAMED_RANKS
    if not is_named:  # bars are narrower than a pixel and hide their neighbours, which are alike in this order
        ranks = ranks.sort_values([TimeCategory.WAIT.value, TimeCategory.COMPUTE_BOUND.value], kind="stable")
    on_cpu = is_on_cpu(run.analysis.job)
    return go.Figure(
        [_bar(ranks, category, theme, is_named=is_named, on_cpu=on_cpu) for category in shown],
        {
            "barmode": "stack",
            "bargap": 0.2 if is_named else 0.0,
            "title": {"text": "Where did the time of each rank go?"},
            "xaxis": {"title": {"text": "rank"}, "type": "category"}
            if is_named
            else {"title": {"text": f"{len(ranks):,} ranks, those that wait least first"}, "showticklabels": False},
            "yaxis": {"title": {"text": "share of the profiled steps"}, "tickformat": ".0%", "range": [0, 1]},
        },
    )


_MAX_NAMED_RANKS = 64


def _bar(ranks: pd.DataFrame, category: TimeCategory, theme: str, *, is_named: bool, on_cpu: bool) -> go.Bar:
    words = category_words(category, on_cpu=on_cpu)
    return go.Bar(
        x=ranks.index.astype("str") if is_named else np.arange(len(ranks)),
        y=ranks[category.value],
        name=words,
        marker={
            "color": THEMES[theme][0][category],
            "line": {"width": 0},
            "pattern": {"shape": _PATTERNS[pattern(category)] if is_named else "", "solidity": 0.2},
        },
        customdata=ranks.index,
        hovertemplate=f"rank %{{customdata}}: %{{y:.1%}} {words}<extra></extra>",
    )


def _steps(run: Run, theme: str) -> go.Figure:
    steps = run.steps()
    colours = THEMES[theme][0]
    lines = _line(steps.index.to_numpy(), steps["ms"].to_numpy(), "step", colours[TimeCategory.COMPUTE_BOUND], "ms")
    marks = []
    for name, is_marked, category, symbol in (
        ("captured", steps["captured"], TimeCategory.PROFILER, "square"),
        ("anomaly", steps["anomalies"].map(bool), TimeCategory.SYNCHRONIZATION, "x"),
    ):
        marked = steps[is_marked]
        if len(marked):
            marker = {"color": colours[category], "symbol": symbol, "size": 9}
            marks.append(go.Scatter(x=marked.index, y=marked["ms"], mode="markers", name=name, marker=marker))
    return go.Figure(
        [lines, *marks],
        {
            "title": {"text": "How long did each step take?"},
            "xaxis": {"title": {"text": "step"}},
            "yaxis": {"title": {"text": "longest of any rank, ms"}, "range": [0, _top(steps["ms"])]},
        },
    )


def _top(ms: pd.Series[float]) -> float:
    """Upper end of the axis: above all steps but the first, which compiles and allocates."""
    return 1.1 * float(ms.iloc[1:].max() if len(ms) > 1 else ms.max())


def _line(x: np.ndarray, y: np.ndarray, name: str, colour: str, unit: str) -> go.Scattergl:
    kept = lowest_and_highest(y, _MAX_POINTS)
    return go.Scattergl(
        x=x[kept],
        y=y[kept],
        mode="lines",
        connectgaps=True,
        name=name,
        line={"color": colour, "width": 1.5},
        hovertemplate=f"step %{{x}}: %{{y:,.4~g}} {unit}<extra>{name}</extra>",
    )


def lowest_and_highest(values: np.ndarray, most: int) -> np.ndarray:
    """Places of the values to draw: of each bucket the lowest and the highest, so that no spike is lost.

    Args:
        values: shape (n,), NaN where unknown.
        most: how many, at least 4.

    Returns:
        Ascending places; all where there are not more than `most`.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(np.intp)
    low = np.where(np.isnan(values), np.inf, values)
    high = np.where(np.isnan(values), -np.inf, values)
    places = [
        first + function(part[first:end])
        for first, end in pairwise(edges.tolist())
        for part, function in ((low, np.argmin), (high, np.argmax))
    ]
    return np.unique(np.array([0, *places, len(values) - 1], np.intp))


def _timeline(run: Run, theme: str) -> go.Figure:
    timelines = run.timelines
    if not timelines:
        raise DataError("has no profiled step to draw", where=", ".join(run.paths))
    start = min(one.start_ns[0] for one in timelines)
    end = max(one.end_ns for one in timelines)
    num_columns = min(_TIMELINE_COLUMNS, _TIMELINE_CELLS // len(timelines))
    edges = np.linspace(start, end, num_columns + 1).astype(np.int64)
    middles_ms = (edges[:-1] + edges[1:] - 2 * start) / 2e6
    codes = np.stack([category_at(one, (edges[:-1] + edges[1:]) // 2) for one in timelines])
    colours, on_cpu = THEMES[theme][0], is_on_cpu(run.analysis.job)
    number = len(CATEGORY_ORDER)
    scale = [
        (edge, colours[category])
        for place, category in enumerate(CATEGORY_ORDER)
        for edge in (place / number, (place + 1) / number)
    ]
    words = np.array([*(category_words(category, on_cpu=on_cpu) for category in CATEGORY_ORDER), ""])
    is_named = len(timelines) <= _MAX_TICKS  # a word a cell makes the figure of many ranks ten times as large
    heatmap = go.Heatmap(
        x=middles_ms,
        y=[one.rank for one in timelines],
        z=np.where(codes < 0, np.nan, codes).astype(np.float32),
        zmin=-0.5,
        zmax=number - 0.5,
        colorscale=scale,
        showscale=False,
        customdata=words[codes] if is_named else None,
        hovertemplate=f"rank %{{y}}, %{{x:.3f}} ms{': %{customdata}' if is_named else ''}<extra></extra>",
    )
    shown = [CATEGORY_ORDER[code] for code in np.unique(codes[codes >= 0]).tolist()]
    legend = [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=category_words(category, on_cpu=on_cpu),
            marker={"color": colours[category], "symbol": "square", "size": 11},
        )
        for category in shown
    ]
    return go.Figure(
        [heatmap, *legend],
        {
            "title": {"text": "What did each rank do when?"},
            "xaxis": {"title": {"text": "ms since the first profiled step"}},
            "yaxis": {"title": {"text": "rank"}, "autorange": "reversed", **_whole_ticks(len(timelines))},
        },
    )


def _whole_ticks(num_ranks: int) -> dict[str, int]:
    """A tick a rank where there is room; fractions of a rank are never shown."""
    return {"dtick": 1} if num_ranks <= _MAX_TICKS else {}


_MAX_TICKS = 16


def category_at(timeline: RankTimeline, times_ns: np.ndarray) -> np.ndarray:
    """Number in CATEGORY_ORDER of what a rank did at each time; -1 outside of its window. Shape as `times_ns`."""
    starts = np.array(timeline.start_ns, np.int64)
    places = np.searchsorted(starts, times_ns, side="right") - 1
    codes = np.array(timeline.categories, np.intp)[np.clip(places, 0, None)]
    return np.where((places < 0) | (times_ns >= timeline.end_ns), -1, codes)


def _ranks(run: Run, theme: str) -> go.Figure:
    late, ranks = run.arrivals(), run.breakdown(by="rank")
    if late.empty:
        raise DataError("has no matched collectives, which would show who arrives late", where=", ".join(run.paths))
    colours = THEMES[theme][0]
    waits = ranks[TimeCategory.WAIT.value].reindex(late.index)
    ordered = late.sort_index()
    return go.Figure(
        [
            go.Bar(
                x=ordered.index,
                y=ordered["mean_late_ms"],
                name="late by",
                marker={"color": colours[TimeCategory.SYNCHRONIZATION]},
                customdata=np.stack([ordered["times_last"], ordered["num_collectives"]], axis=1),
                hovertemplate="rank %{x}: %{y:.3f} ms, last at %{customdata[0]} of %{customdata[1]}<extra></extra>",
            ),
            go.Scatter(
                x=waits.sort_index().index,
                y=waits.sort_index(),
                yaxis="y2",
                mode="markers",
                name="waits for others",
                marker={"color": colours[TimeCategory.WAIT], "symbol": "diamond"},
                hovertemplate="rank %{x}: %{y:.1%} waiting<extra></extra>",
            ),
        ],
        {
            "title": {"text": "Which rank do the others wait for?"},
            "xaxis": {"title": {"text": "rank"}, **_whole_ticks(len(late))},
            "yaxis": {"title": {"text": "mean delay after the first, ms"}, "rangemode": "tozero"},
            "yaxis2": {
                "title": {"text": "share of the profiled steps"},
                "overlaying": "y",
                "tickmode": "auto",  # not at the lines of the first axis, which are no round shares
                "side": "right",
                "tickformat": ".0%",
                "rangemode": "tozero",
                "showgrid": False,
            },
        },
    )


def _roofline(run: Run, theme: str) -> go.Figure:
    kernels = run.kernels().sort_values("ms", ascending=False).head(_MAX_KERNELS).reset_index()
    if kernels.empty:
        raise DataError("has no kernels", where=", ".join(run.paths))
    colours, on_cpu = THEMES[theme][0], is_on_cpu(run.analysis.job)
    bars = [
        go.Bar(
            x=group["ms"],
            y=group.index,
            orientation="h",
            name=category_words(TimeCategory(str(limit)), on_cpu=on_cpu),
            marker={"color": colours[TimeCategory(str(limit))]},
            text=["" if np.isnan(share) else f"{share:.0%} of the roofline" for share in group["roof_share"]],
            textposition="auto",
            hovertext=group["name"],
            hovertemplate="%{hovertext}<br>%{x:,.3~f} ms %{text}<extra></extra>",
        )
        for limit, group in kernels.groupby("limit", sort=False)
    ]
    names = [short_kernel_name(name, max_length=_MAX_NAME) for name in kernels["name"]]
    return go.Figure(
        bars,
        {
            "title": {"text": "Which kernels take the time, and what limits them?"},
            "barmode": "overlay",
            "xaxis": {"title": {"text": "ms over all ranks and profiled steps"}},
            "yaxis": {
                "automargin": True,
                "autorange": "reversed",
                "tickvals": kernels.index,
                "ticktext": names,
            },
            "height": 180 + 24 * len(kernels),
        },
    )


_MAX_NAME = 48


def _collectives(run: Run, theme: str) -> go.Figure:
    known = run.collectives().dropna(subset=["bytes", "busbw_gbs"])
    if known.empty:
        raise DataError("has no collectives of known size and bandwidth", where=", ".join(run.paths))
    colours = THEMES[theme][0]
    palette = [colours[category] for category in CATEGORY_ORDER]
    marks = [
        go.Scatter(
            x=group["bytes"].astype("float64"),
            y=group["busbw_gbs"],
            mode="markers",
            name=str(kind),
            marker={"color": palette[place % len(palette)], "size": 9, "symbol": place},
            customdata=group[["group", "count"]],
            hovertemplate="%{x:.3s}B, %{y:.1f} GB/s, %{customdata[1]} calls in %{customdata[0]}",
        )
        for place, (kind, group) in enumerate(known.groupby("kind"))
    ]
    expected = known.dropna(subset=["expected_busbw_gbs"]).sort_values("bytes")
    line = go.Scatter(
        x=expected["bytes"].astype("float64"),
        y=expected["expected_busbw_gbs"],
        mode="lines+markers" if len(expected) == 1 else "lines",
        name="expected",
        line={"color": colours[TimeCategory.IDLE_OTHER], "dash": "dot"},
    )
    return go.Figure(
        [*marks, line],
        {
            "title": {"text": "Do collectives reach the bandwidth of their links?"},
            "xaxis": {"title": {"text": "bytes of a call"}, "type": "log"},
            "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, "rangemode": "tozero"},
        },
    )


def _memory(run: Run, theme: str) -> go.Figure:
    steps = run.steps()
    names = [name for name in _MEMORY if f"figures.{name}" in steps]
    if not names:
        raise DataError("its step records have no memory figures", where=", ".join(run.paths))
    colours = THEMES[theme][0]
    palette = (TimeCategory.COMPUTE_BOUND, TimeCategory.BUBBLE, TimeCategory.COMMUNICATION, TimeCategory.HOST_BOUND)
    lines = [
        _line(
            steps.index.to_numpy(),
            steps[f"figures.{name}"].to_numpy() / 2**30,
            name.removesuffix("_bytes").replace("_", " "),
            colours[category],
            "GiB",
        )
        for name, category in zip(_MEMORY, palette, strict=True)
        if name in names
    ]
    return go.Figure(
        lines,
        {
            "title": {"text": "How much memory do the ranks use?"},
            "xaxis": {"title": {"text": "step"}},
            "yaxis": {"title": {"text": "mean over ranks, GiB"}, "rangemode": "tozero"},
        },
    )


FIGURES: dict[str, Callable[[Run, str], go.Figure]] = {
    "breakdown": _breakdown,
    "steps": _steps,
    "timeline": _timeline,
    "ranks": _ranks,
    "roofline": _roofline,
    "collectives": _collectives,
    "memory": _memory,
}
