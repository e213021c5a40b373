"""How did the window pass, rank beside rank?"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.analysis import Analysis
from stepscope.core.timeline import RankTimeline
from stepscope.core.words import milliseconds
from stepscope.workflow.rank_choice import most_different_ranks
from stepscope.workflow.report_html.blocks import more, panel
from stepscope.workflow.report_html.markup import Markup, tag
from stepscope.workflow.report_html.picture import encode, paint
from stepscope.workflow.timeline_tiles import make_track

MOST_RANKS = 64
MOST_PICTURE_BYTES = 450_000
WIDTHS = (1600, 800, 400, 200)
"""Columns: the widest whose pictures stay small enough."""
NUM_TICKS = 5
FEW_RANKS = 8
"""So few have room for taller rows."""


def timeline(analysis: Analysis, timelines: Sequence[RankTimeline]) -> Markup | None:
    """A row a rank; nothing without time lines."""
    chosen = {rank.rank for rank in most_different_ranks(analysis, MOST_RANKS)}
    shown = [line for line in timelines if line.rank in chosen and line.start_ns]
    if not shown:
        return None
    tracks = [make_track(line) for line in shown]
    start = min(int(track.edges_ns[0]) for track in tracks)
    end = max(max(int(track.edges_ns[-1]) for track in tracks), start + 1)
    for width in WIDTHS:
        pictures = [paint(track, start_ns=start, end_ns=end, width=width) for track in tracks]
        themes = [[encode(picture, is_dark=dark) for picture in pictures] for dark in (False, True)]
        if sum(len(uri) for theme in themes for uri in theme) <= MOST_PICTURE_BYTES:
            break
    rows = [_row(track.rank, *uris) for track, *uris in zip(tracks, *themes, strict=True)]
    ticks = [tag("span", milliseconds((end - start) / 1e6 * place / (NUM_TICKS - 1))) for place in range(NUM_TICKS)]
    return panel(
        "How did the window pass?",
        tag(
            "div",
            *rows,
            tag("div", tag("span"), tag("div", *ticks, class_="ticks")),
            class_="timeline few" if len(rows) <= FEW_RANKS else "timeline",
        ),
        more(len(timelines) - len(shown), "ranks, less different from the job,"),
        key="timeline",
        note="Colours as above; a column shows the share of each heading in its time. Upright lines: a step begins.",
    )


def _row(rank: int, light: str, dark: str) -> Markup:
    picture = tag(
        "picture",
        tag("source", srcset=dark, media="screen and (prefers-color-scheme: dark)"),
        tag("img", src=light, alt=f"Time line of rank {rank}"),
    )
    return tag("div", tag("span", str(rank), class_="num"), picture)
