"""Live hang detection: whether a running job hangs, from what its ranks report during a long step.

A rank that takes long by nature, or visibly gets on, is not the culprit, whatever waits for it. What the flight
recorders say comes first; where they say nothing, who is in a collective waits for who is not. A rank that should
have spoken and has not is the first suspect: it is dead, stopped, or keeps Python's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stepscope.analyzer.hang.verdict import NONE
from stepscope.core.documents.hang import (
    STALE_SECONDS,
    HangEvidence,
    HangKind,
    HangReport,
    LiveHang,
    LiveHangState,
    RankState,
)
from stepscope.core.text.numbers import counted, form, ranks_words
from stepscope.core.vocabulary.causes import Cause, Reason

GRACE_SECONDS = 3.0
"""All ranks come to their limit within about a second, and write within another."""

_TIMES_LIMIT_BLAMING_NOBODY = 2.0
"""Where nobody is behind it may be the network that stutters, or a long kernel on all."""

_LIKELY, _PERHAPS, _UNKNOWN = 0.8, 0.6, 0.3
_MOST_EVIDENCE = 8


@dataclass(frozen=True, slots=True)
class _Accused:
    ranks: list[int]
    kind: HangKind
    reasons: list[Reason]
    confidence: float
    summary: str
    evidence: list[HangEvidence]


def fresh_states(states: Sequence[RankState]) -> list[RankState]:
    """Of those that still speak, in the order of their ranks."""
    newest = max((state.seen_ns for state in states), default=0)
    return sorted((state for state in states if newest - state.seen_ns < STALE_SECONDS * 1e9), key=lambda one: one.rank)


def live_hang(states: Sequence[RankState], report: HangReport | None, *, expected: Collection[int]) -> LiveHang:
    """What is to be said now.

    Args:
        states: those of `fresh_states`.
        report: what the flight recorders of the same ranks say; None where there are none.
        expected: ranks that would have left a state here if they could; ranks of nodes with a disk of their own are
            not.
    """
    stalled = [state for state in states if state.age_seconds >= state.limit_seconds]
    if not stalled:
        return LiveHang(LiveHangState.NONE, None, [], [], 0.0, "no step lasts longer than it may")
    oldest = max(stalled, key=lambda state: state.age_seconds)
    here = {*expected, *(state.rank for state in states)}
    silent = sorted(here - {state.rank for state in states})
    busy = {state.rank: state.doing or state.where for state in states if state.doing or not state.is_still}
    accused = _accused(states, report, silent)

    def answer(state: LiveHangState, ranks: Sequence[int], summary: str, by: _Accused | None = None) -> LiveHang:
        return LiveHang(
            state,
            by.kind if by else None,
            by.reasons if by else [],
            list(ranks),
            by.confidence if by else 0.0,
            summary,
            by.evidence[:_MOST_EVIDENCE] if by else [],
            oldest.step,
            round(oldest.age_seconds, 3),
            silent,
        )

    at_work = [rank for rank in (accused.ranks if accused else busy) if rank in busy]
    if len(busy) == len(states):  # nobody waits
        at_work = at_work or list(busy)
    if at_work:
        return answer(LiveHangState.BUSY, at_work, f"{ranks_words(at_work)} at work: {busy[at_work[0]]}")
    said_for = (max(state.seen_ns for state in states) - min(state.since_ns for state in states)) / 1e9
    has_waited = oldest.age_seconds >= _TIMES_LIMIT_BLAMING_NOBODY * oldest.limit_seconds
    if accused is None:
        summary = "all ranks stand still, and nobody is behind: the network, or all alike"
        nobody = _Accused([], HangKind.UNKNOWN, [], _UNKNOWN, summary, _where(states))
        return answer(LiveHangState.HANG if has_waited else LiveHangState.UNDECIDED, [], summary, nobody)
    is_silence = bool(set(accused.ranks) & set(silent))
    is_doubtful = (is_silence and bool(busy)) or set(accused.ranks) == {state.rank for state in states}
    if said_for < GRACE_SECONDS or (is_doubtful and not has_waited):
        return answer(LiveHangState.UNDECIDED, [], "ranks are still being heard")
    if is_silence and not _somebody_waits(states, report):
        return answer(
            LiveHangState.UNDECIDED,
            [],
            f"{ranks_words(accused.ranks)} {form(len(accused.ranks), 'has', 'have')} left, and nobody waits for them",
        )
    elsewhere = [rank for rank in accused.ranks if rank not in here]
    if elsewhere:
        do = form(len(elsewhere), "leaves nothing here: look at its node", "leave nothing here: look at their nodes")
        summary = f"the ranks here wait for {ranks_words(elsewhere)}, which {do}"
        other = _Accused([], HangKind.UNKNOWN, [], _UNKNOWN, summary, accused.evidence)
        return answer(LiveHangState.HANG, [], summary, other)
    return answer(LiveHangState.HANG, accused.ranks, accused.summary, accused)


def _somebody_waits(states: Sequence[RankState], report: HangReport | None) -> bool:
    """Whether a rank is in a collective; one that goes on alone, as at the end of training, is in none."""
    is_open = report is not None and any(group.operation is not None for group in report.groups)
    return is_open or any(state.is_in_collective and state.is_still for state in states)


def _accused(states: Sequence[RankState], report: HangReport | None, silent: Sequence[int]) -> _Accused | None:
    verdict = report.verdict if report else None
    if verdict is not None and verdict.cause == Cause.HANG and verdict.ranks and verdict.kind is not None:
        return _Accused(
            verdict.ranks, verdict.kind, verdict.reasons, verdict.confidence, verdict.summary, verdict.evidence
        )
    if silent:
        ranks = list(silent)
        summary = f"{ranks_words(ranks)} fell silent while the others wait: dead, stopped, or holding Python's lock"
        evidence = [
            HangEvidence(ranks, form(len(ranks), "says nothing any more", "say nothing any more")),
            *_where(states),
        ]
        return _Accused(ranks, HangKind.UNKNOWN, [Reason.MISSING_RANK], _LIKELY, summary, evidence)
    waiting = [state.rank for state in states if state.is_in_collective]
    apart = [state for state in states if not state.is_in_collective]
    if waiting and apart:
        ranks = [state.rank for state in apart]
        summary = (
            f"{ranks_words(ranks)} not in the collective that "
            f"{counted(len(waiting), 'other waits', 'others wait')} in: {apart[0].where}"
        )
        return _host(ranks, summary, states)
    knows_calls = len(states) == 1 or (verdict is not None and verdict.cause == NONE)
    if apart and knows_calls:  # else they may be in collectives that Python does not show
        ranks = [state.rank for state in apart]
        return _host(ranks, f"{ranks_words(ranks)} outside of any collective, standing still: {apart[0].where}", states)
    return None


def _host(ranks: list[int], summary: str, states: Sequence[RankState]) -> _Accused:
    return _Accused(ranks, HangKind.HOST, [Reason(HangKind.HOST.value)], _PERHAPS, summary, _where(states))


def _where(states: Sequence[RankState]) -> list[HangEvidence]:
    """Where ranks are, the fewest together first: they are the odd ones."""
    places: dict[str, list[int]] = {}
    for state in states:
        places.setdefault(state.where, []).append(state.rank)
    return [HangEvidence(ranks, f"in {where}") for where, ranks in sorted(places.items(), key=lambda one: len(one[1]))]
