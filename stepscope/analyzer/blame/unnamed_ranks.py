"""Ranks whose numbers come from the order of the files: a verdict names their files, never the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import Analysis, RootCause, Verdict
from stepscope.core.documents.what_if import Fix
from stepscope.core.text.numbers import form
from stepscope.core.text.wording import place_words
from stepscope.core.vocabulary import Evidence
from stepscope.trace.columns import RankSource

_MAX_RANKS, _MAX_FILES = 8, 4


def look_at(ranks: Sequence[int], views: Mapping[int, RankView]) -> str:
    """Clause with the ranks to look at, the worst first; with their files where the numbers identify no process."""
    worst_first = " (worst first)" if len(ranks) > 1 else ""
    unnamed = _unnamed(views)
    if unnamed.isdisjoint(ranks):
        return f"; look at {form(len(ranks), 'rank')} {_enumerate(list(map(str, ranks)), _MAX_RANKS)}{worst_first}"
    names = [_file_words(views[rank], views) if rank in unnamed else f"rank {rank}" for rank in ranks]
    lacks = f"{form(len(unnamed.intersection(ranks)), 'this file gives', 'these files give')} no global rank"
    return f"; look at {_enumerate(names, _MAX_FILES)}{worst_first}: {lacks}"


def without_unnamed(analysis: Analysis, views: Mapping[int, RankView]) -> Analysis:
    """The analysis without such numbers in its causes and their evidence."""
    verdict = analysis.verdict
    return replace(
        analysis,
        root_causes=[
            replace(row, ranks=_named(row.ranks, views), evidence=_evidence(row, views)) for row in analysis.root_causes
        ],
        verdict=replace(verdict, ranks=_named(verdict.ranks, views), evidence=_evidence(verdict, views)),
    )


def fixes_without_unnamed(fixes: Sequence[Fix], views: Mapping[int, RankView]) -> list[Fix]:
    """The fixes without such numbers."""
    return [replace(fix, ranks=_named(fix.ranks, views)) for fix in fixes]


def _named(ranks: Sequence[int], views: Mapping[int, RankView]) -> list[int]:
    """The ranks without such numbers; all ranks together name none."""
    unnamed = _unnamed(views) if len(ranks) < len(views) else set()
    return [rank for rank in ranks if rank not in unnamed]


def _evidence(owner: RootCause | Verdict, views: Mapping[int, RankView]) -> list[Evidence]:
    return [replace(evidence, ranks=_named(evidence.ranks, views)) for evidence in owner.evidence]


def _unnamed(views: Mapping[int, RankView]) -> set[int]:
    return {rank for rank, view in views.items() if view.header.rank_source is RankSource.ORDER}


def _file_words(view: RankView, views: Mapping[int, RankView]) -> str:
    """The file, with its folder where another has the same name, and its place in the parallel dimensions."""
    file = view.header.file
    if sum(other.header.file == file for other in views.values()) > 1:
        file = view.header.file_in_folder
    place = place_words(view.header.place)
    return f"{place} ({file})" if place else file


def _enumerate(names: Sequence[str], most: int) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
