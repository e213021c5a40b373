"""Live hang detection: whether a running job hangs, from what its ranks report during a long step.

A rank whose step is long by nature, or that makes progress, is not a culprit, whatever waits for it. The flight
recorders decide first; where they blame nobody, ranks in a collective wait for ranks that are not in it. A rank that
should have reported and has not is the first suspect: it is dead, stopped, or does not release Python's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepscope.analyzer.hang.verdict import NONE
from stepscope.core.documents import hang
from stepscope.core.text.numbers import counted, form, ranks_words
from stepscope.core.vocabulary import Cause, Reason

GRACE_SECONDS = 3.0
"""Ranks reach their limit within about a second of each other, and report within another."""

_LIMIT_FACTOR_WITHOUT_CULPRIT = 2.0
"""Multiple of the limit before a hang without a culprit is reported: it may be a slow network or a long kernel."""

_LIKELY, _PERHAPS, _UNKNOWN = 0.8, 0.6, 0.3
_MAX_EVIDENCE = 8

_NOBODY = hang.HangVerdict(NONE, None, [], [], 0.0, "")


def fresh_states(states: Sequence[hang.RankState]) -> list[hang.RankState]:
    """Hang analysis: states of the ranks of a possibly hanging job that still report, by rank."""
    newest = max((state.seen_ns for state in states), default=0)
    return sorted(
        (state for state in states if newest - state.seen_ns < hang.STALE_SECONDS * 1e9), key=lambda one: one.rank
    )


def live_hang(
    states: Sequence[hang.RankState], report: hang.HangReport | None, *, expected: Collection[int]
) -> hang.LiveHang:
    """Judge whether a running job hangs.

    Args:
        states: from `fresh_states`.
        report: hang report from the flight recorders of the same ranks; None without recorders.
        expected: ranks that would leave a state in this directory if they could, unlike those of nodes with a disk of
            their own.
    """
    stalled = [state for state in states if state.age_seconds >= state.limit_seconds]
    if not stalled:
        return hang.LiveHang(hang.LiveHangState.NONE, None, [], [], 0.0, "no step lasts longer than it may")
    oldest = max(stalled, key=lambda state: state.age_seconds)
    here = {*expected, *(state.rank for state in states)}
    silent = sorted(here - {state.rank for state in states})
    busy = {state.rank: state.doing or state.where for state in states if state.doing or not state.is_still}
    suspicion = _find_suspicion(states, report, silent)

    def answer(
        state: hang.LiveHangState, ranks: Sequence[int], summary: str, by: hang.HangVerdict = _NOBODY
    ) -> hang.LiveHang:
        age_seconds = round(oldest.age_seconds, 3)
        evidence = by.evidence[:_MAX_EVIDENCE]
        return hang.LiveHang(
            state, by.kind, by.reasons, list(ranks), by.confidence, summary, evidence, oldest.step, age_seconds, silent
        )

    working = [rank for rank in (suspicion.ranks if suspicion else busy) if rank in busy]
    if len(busy) == len(states):
        working = working or list(busy)
    if working:
        return answer(hang.LiveHangState.BUSY, working, f"{ranks_words(working)} at work: {busy[working[0]]}")
    reported_seconds = (max(state.seen_ns for state in states) - min(state.since_ns for state in states)) / 1e9
    has_waited = oldest.age_seconds >= _LIMIT_FACTOR_WITHOUT_CULPRIT * oldest.limit_seconds
    if suspicion is None:
        summary = "all ranks stand still, and nobody is behind: the network, or all alike"
        state = hang.LiveHangState.HANG if has_waited else hang.LiveHangState.UNDECIDED
        return answer(state, [], summary, _no_culprit(_where(states)))
    is_silence = bool(set(suspicion.ranks) & set(silent))
    # a desync is proven by the calls themselves, also where all ranks are named
    is_everybody = set(suspicion.ranks) == {state.rank for state in states} and suspicion.kind != hang.HangKind.DESYNC
    is_uncertain = (is_silence and bool(busy)) or is_everybody
    if reported_seconds < GRACE_SECONDS or (is_uncertain and not has_waited):
        return answer(hang.LiveHangState.UNDECIDED, [], "ranks are still being heard")
    if is_silence and not _any_rank_waits(states, report):
        left = f"{ranks_words(suspicion.ranks)} {form(len(suspicion.ranks), 'has', 'have')} left"
        return answer(hang.LiveHangState.UNDECIDED, [], f"{left}, and nobody waits for them")
    elsewhere = [rank for rank in suspicion.ranks if rank not in here]
    if elsewhere:
        do = form(len(elsewhere), "leaves nothing here: look at its node", "leave nothing here: look at their nodes")
        summary = f"the ranks here wait for {ranks_words(elsewhere)}, which {do}"
        return answer(hang.LiveHangState.HANG, [], summary, _no_culprit(suspicion.evidence))
    return answer(hang.LiveHangState.HANG, suspicion.ranks, suspicion.summary, suspicion)


def _no_culprit(evidence: list[hang.HangEvidence]) -> hang.HangVerdict:
    return hang.HangVerdict(Cause.HANG, hang.HangKind.UNKNOWN, [], [], _UNKNOWN, "", evidence)


def _any_rank_waits(states: Sequence[hang.RankState], report: hang.HangReport | None) -> bool:
    """Whether a rank is in a collective; at the end of training the last rank goes on without one."""
    is_open = report is not None and any(group.operation is not None for group in report.groups)
    return is_open or any(state.is_in_collective and state.is_still for state in states)


def _find_suspicion(
    states: Sequence[hang.RankState], report: hang.HangReport | None, silent: Sequence[int]
) -> hang.HangVerdict | None:
    verdict = report.verdict if report else None
    if verdict is not None and verdict.cause == Cause.HANG and verdict.ranks and verdict.kind is not None:
        return verdict
    if silent:
        ranks = list(silent)
        summary = f"{ranks_words(ranks)} fell silent while the others wait: dead, stopped, or holding Python's lock"
        evidence = [
            hang.HangEvidence(ranks, form(len(ranks), "says nothing any more", "say nothing any more")),
            *_where(states),
        ]
        return hang.HangVerdict(
            Cause.HANG, hang.HangKind.UNKNOWN, [Reason.MISSING_RANK], ranks, _LIKELY, summary, evidence
        )
    waiting = [state.rank for state in states if state.is_in_collective]
    apart = [state for state in states if not state.is_in_collective]
    if waiting and apart:
        ranks = [state.rank for state in apart]
        summary = (
            f"{ranks_words(ranks)} not in the collective that "
            f"{counted(len(waiting), 'other waits', 'others wait')} in: {apart[0].where}"
        )
        return _suspect(hang.HangKind.HOST, ranks, summary, states)
    knows_calls = len(states) == 1 or (verdict is not None and verdict.cause == NONE)
    if apart and knows_calls:  # otherwise they may be in collectives that Python does not show
        ranks = [state.rank for state in apart]
        if len(device_waits(apart)) == len(apart):
            gpus = form(len(ranks), "its GPU does", "their GPUs do")
            summary = f"{gpus} not finish: {ranks_words(ranks)} outside of any collective, in {apart[0].device_wait}"
            return _suspect(hang.HangKind.DEVICE, ranks, summary, states)
        summary = f"{ranks_words(ranks)} outside of any collective, standing still: {apart[0].where}"
        return _suspect(hang.HangKind.HOST, ranks, summary, states)
    return None


def device_waits(states: Sequence[hang.RankState]) -> dict[int, str]:
    """Hang analysis: by rank whose host waits for its device: the call in which it waits."""
    return {state.rank: state.device_wait for state in states if state.device_wait and state.is_still}


def _suspect(kind: hang.HangKind, ranks: list[int], summary: str, states: Sequence[hang.RankState]) -> hang.HangVerdict:
    return hang.HangVerdict(Cause.HANG, kind, [Reason(kind.value)], ranks, _PERHAPS, summary, _where(states))


def _where(states: Sequence[hang.RankState]) -> list[hang.HangEvidence]:
    """Where the ranks are, smallest group first, as it is the odd one."""
    places: dict[str, list[int]] = {}
    for state in states:
        places.setdefault(state.where, []).append(state.rank)
    return [
        hang.HangEvidence(ranks, f"in {where}") for where, ranks in sorted(places.items(), key=lambda one: len(one[1]))
    ]
