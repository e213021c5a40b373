"""Verdict of a hang: the ranks that hold up the job, and where they are stuck.

The first rule that applies decides:

1. Ranks called something else than the others: desync.
2. The dumps are not of one moment, or of one in which no rank had waited yet: no verdict.
3. Ranks that others wait for left no dump, because they could no longer write one.
4. Ranks are behind and wait for nobody: stuck on the host or the device.
5. Collectives wait for each other in a cycle: desync.
6. Ranks are the end of a chain of messages: stuck on the host.

Otherwise no rank is proven to be the culprit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.analyzer.blame.remedies import remedy_text
from stepscope.analyzer.hang import culprits, wait_graph
from stepscope.analyzer.hang.progress import (
    MIN_WAIT_SECONDS,
    JobProgress,
    job_progress,
    longest_wait_seconds,
    older_dumps,
    with_timeouts_open,
)
from stepscope.core.documents.hang import FlightDump, HangEvidence, HangKind, HangReport, HangVerdict
from stepscope.core.text.numbers import counted, form, ranks_words
from stepscope.core.vocabulary import Cause, Reason

NONE = "none"

_MAX_EVIDENCE = 8
_CERTAIN, _LIKELY, _PERHAPS, _UNKNOWN = 0.95, 0.8, 0.6, 0.3

_STUCK = {
    culprits.Lag.CALLED: "never called the collective that the others wait in: stuck on the host",
    culprits.Lag.STARTED: "called the collective that the others are in, but did not start it: stuck on the GPU",
    culprits.Lag.FINISHED: "called what the peers have finished, but did not finish it: stuck on the GPU",
}

_ACTION_WITHOUT_CULPRIT = (
    "look at the network between the nodes, and dump with TORCH_NCCL_ENABLE_TIMING=1 the next time"
)


_WAITS_FOR_DEVICE = (
    "never called the collective that the others wait in: {whose} does not finish the work before it, for which the"
    " host waits in {where}"
)


def explain_hang(
    dumps: Sequence[FlightDump], *, world_size: int = 0, device_waits: Mapping[int, str] | None = None
) -> HangReport:
    """Explain a hang from flight recorder dumps, at most one per rank.

    Args:
        world_size: 0 if it is unknown.
        device_waits: by rank: the call in which its host waits for its device.
    """
    dumps = with_timeouts_open(dumps, world_size)
    progress = job_progress(dumps, world_size)
    calls = culprits.open_calls(dumps, progress)
    present = sorted(dump.rank for dump in dumps)
    world = {*present, *range(world_size), *(rank for group in progress for rank in group.members)}
    missing = sorted(world - set(present))
    verdict = _verdict(dumps, progress, calls, missing, culprits.idle_device_waits(dumps, device_waits or {}))
    return HangReport(verdict, present, missing, culprits.waiting_groups(dumps, calls))


def _verdict(
    dumps: Sequence[FlightDump],
    progress: JobProgress,
    calls: Mapping[int, culprits.OpenCall],
    missing: Sequence[int],
    device_waits: Mapping[int, str],
) -> HangVerdict:
    mismatches = culprits.first_mismatches(progress)
    if mismatches:
        return _desync(min(mismatches, key=lambda one: (not one.has_majority, one.sequence)), dumps, progress)
    if undecided := _not_comparable(dumps, progress):
        return undecided
    awaited = _awaited(progress, calls, missing)
    messages = culprits.message_waits(dumps, progress)
    lagging = culprits.lagging_ranks(progress, calls, messages, device_waits)
    if awaited and len(missing) <= len(dumps):
        return _missing(awaited, lagging)
    if lagging:
        return _behind(lagging, calls)
    if awaited:
        summary = (
            f"only {len(dumps)} of {counted(len(dumps) + len(missing), 'rank')} left a dump, "
            f"and {form(len(dumps), 'waits', 'they wait')} for others"
        )
        return _insufficient(summary, "give the dumps of all ranks")
    return _deadlock(dumps, progress, calls) or _end_of_messages(dumps, messages) or _nobody(dumps, calls)


def _not_comparable(dumps: Sequence[FlightDump], progress: JobProgress) -> HangVerdict | None:
    """Verdict on dumps that cannot be compared, or that show no wait; None otherwise."""
    older = older_dumps(progress)
    wait = longest_wait_seconds(dumps)
    evidence = [
        HangEvidence(
            [one.rank, one.than],
            f"rank {one.than} has completed {one.call.name} {one.call.sequence} of {one.group.words}, "
            f"which rank {one.rank} had not called when its dump was written",
        )
        for one in older[:_MAX_EVIDENCE]
    ]
    if older:
        ranks = ranks_words([one.rank for one in older])
        summary = f"the dumps are not of one moment: of {ranks} older than the others'"
    elif wait is not None and 0 <= wait < MIN_WAIT_SECONDS:
        summary = f"no call was open for longer than {wait:.2f} s when the dumps were written: no hang yet"
    else:
        return None
    return _insufficient(summary, "dump all ranks anew, at one time and while the job stands still", evidence)


def _awaited(progress: JobProgress, calls: Mapping[int, culprits.OpenCall], missing: Sequence[int]) -> list[int]:
    """Ranks without a dump that open calls wait for; any such rank if recorders do not list the groups."""
    awaited = {rank for call in calls.values() for rank in call.waits_for} & set(missing)
    if calls and not all(group.is_listed for group in progress):
        awaited |= set(missing)
    return sorted(awaited)


def _desync(mismatch: culprits.Mismatch, dumps: Sequence[FlightDump], progress: JobProgress) -> HangVerdict:
    """Verdict on a mismatch; without a majority, ranks that made a new transition have left the common sequence."""
    ranks = list(mismatch.others)
    if not mismatch.has_majority:
        calls = {rank: progress[mismatch.group][rank].calls[mismatch.sequence] for rank in ranks}
        left = culprits.diverged_ranks(dumps, calls, ranks)
        ranks = left if 0 < len(left) < len(ranks) else ranks
    is_known = len(ranks) < sum(map(len, mismatch.calls.values()))
    do = "called something else than the others" if is_known else "do not call the same"
    summary = f"{ranks_words(ranks)} {do} as collective {mismatch.sequence} of {mismatch.group.words}"
    evidence = [HangEvidence(list(callers), f"called {call}") for call, callers in mismatch.calls.items()]
    confidence = _CERTAIN if mismatch.has_majority else _LIKELY
    return _hang(HangKind.DESYNC, ranks, confidence, summary, evidence)


def _missing(awaited: list[int], lagging: Sequence[culprits.LaggingRank]) -> HangVerdict:
    evidence = [
        HangEvidence(awaited, f"left no dump, and the others wait for {form(len(awaited), 'it', 'them')}"),
        *map(_lag_evidence, lagging),
    ]
    summary = f"{ranks_words(awaited)} left no dump, and others wait: suspected first"
    return _hang(HangKind.UNKNOWN, awaited, _LIKELY, summary, evidence, [Reason.MISSING_RANK])


def _behind(lagging: Sequence[culprits.LaggingRank], calls: Mapping[int, culprits.OpenCall]) -> HangVerdict:
    kinds = {one.kind for one in lagging}
    lags = {one.lag for one in lagging}
    kind = lagging[0].kind if len(kinds) == 1 else HangKind.UNKNOWN
    ranks = [one.rank for one in lagging]
    waiting = len([rank for rank, call in calls.items() if rank not in ranks])
    where = "all on the GPU" if kind is HangKind.DEVICE else "some on the host, some on the GPU"
    if device_waits := {one.device_wait for one in lagging if one.device_wait}:
        gpus = form(len(ranks), "its GPU", "their GPUs")
        held = _WAITS_FOR_DEVICE.format(whose=gpus, where=sorted(device_waits)[0])
    is_alike = len(lags) == 1 and len({bool(one.device_wait) for one in lagging}) == 1
    stuck = (held if device_waits else _STUCK[lagging[0].lag]) if is_alike else f"are behind, {where}"
    summary = f"{ranks_words(ranks)} {stuck}; {counted(waiting, 'other waits', 'others wait')}"
    # a GPU may run work that no recorder sees
    confidence = _LIKELY if device_waits or lags == {culprits.Lag.STARTED} else _CERTAIN
    if len(ranks) > waiting or kind is HangKind.UNKNOWN:
        confidence = _PERHAPS
    return _hang(kind, ranks, confidence, summary, list(map(_lag_evidence, lagging)))


def _lag_evidence(one: culprits.LaggingRank) -> HangEvidence:
    fewer = f"{one.behind} {form(one.behind, 'collective')} fewer"
    return HangEvidence([one.rank], f"has {one.lag} {fewer} of {one.group.words} than {ranks_words(list(one.ahead))}")


_NUM_BEFORE = range(1, 5)
"""Lengths of the history that shows which rank left the common order: the shortest that tells the ranks apart."""


def _deadlock(
    dumps: Sequence[FlightDump], progress: JobProgress, calls: Mapping[int, culprits.OpenCall]
) -> HangVerdict | None:
    """Ranks whose collectives wait for each other; those with a new transition left the common sequence."""
    found = wait_graph.find_deadlock(progress, calls)
    if found is None:
        return None
    cycle = found.awaited
    heads = {rank: one.call for rank, one in calls.items()}
    by_history = (culprits.diverged_ranks(dumps, heads, cycle, num_before=number) for number in _NUM_BEFORE)
    left = next((ranks for ranks in by_history if 0 < len(ranks) < len(cycle)), [])
    has_history = bool(left)
    if not left:  # too little is recorded: take the ranks that most others wait for
        left = found.most_awaited
    evidence = [HangEvidence([rank], _wait_words(rank, calls, found)) for rank in cycle[:_MAX_EVIDENCE]]
    if has_history:
        message = "in earlier steps no rank made this call after the one before it"
        evidence.append(HangEvidence(left, message))
    confidence = _LIKELY if len(left) < len(cycle) else _PERHAPS
    return _hang(HangKind.DESYNC, left, confidence, _deadlock_summary(left, cycle, calls, found), evidence)


def _deadlock_summary(
    left: Sequence[int], cycle: Sequence[int], calls: Mapping[int, culprits.OpenCall], found: wait_graph.Deadlock
) -> str:
    rank = next((rank for rank in left if rank in found.behind), None)
    if rank is None:
        return (
            f"{ranks_words(list(left))} {form(len(left), 'waits', 'wait')} in another group than the ranks that wait "
            f"for {form(len(left), 'it', 'them')}"
        )
    first, second = calls[rank].words, found.behind[rank].words
    if len(left) < len(cycle):
        others = [one for one in cycle if one not in left]
        named = ranks_words(others) if len(others) == 1 else "the others"
        order = f"called {first} before {second}, and {named} after it"
    else:
        order = f"called {first} and {second} in different orders"
    return f"{ranks_words(list(left))} {order}: a deadlock across process groups"


def _wait_words(rank: int, calls: Mapping[int, culprits.OpenCall], found: wait_graph.Deadlock) -> str:
    awaited = sorted(found.waits_for[rank])
    have_called = [other for other in awaited if other in found.behind]
    behind = f", which called it after {calls[have_called[0]].words}" if have_called == awaited else ""
    return f"waits in {calls[rank].words} for {ranks_words(awaited)}{behind}"


def _end_of_messages(dumps: Sequence[FlightDump], messages: Mapping[int, int]) -> HangVerdict | None:
    """Ranks that others wait for a message from, and that have nothing open themselves."""
    is_open = {dump.rank for dump in dumps if any(not call.is_done for call in dump.operations)}
    present = {dump.rank for dump in dumps}
    ends = sorted({other for other in messages.values() if other in present and other not in is_open})
    if not ends:
        return None
    evidence = [
        HangEvidence(
            waiting := sorted(rank for rank, other in messages.items() if other == end),
            f"{form(len(waiting), 'waits', 'wait')} for a message with rank {end}",
        )
        for end in ends
    ]
    do = form(len(ends), "neither sends nor receives what its", "neither send nor receive what their")
    summary = f"{ranks_words(ends)} {do} neighbours wait for: stuck on the host"
    return _hang(HangKind.HOST, ends, _LIKELY, summary, evidence)


def _nobody(dumps: Sequence[FlightDump], calls: Mapping[int, culprits.OpenCall]) -> HangVerdict:
    num_open = sum(any(not call.is_done for call in dump.operations) for dump in dumps)
    if not num_open and any(_has_unrecorded(dump) for dump in dumps):
        summary = "no recorded call is open, but messages were sent, which gloo's recorder does not have"
        return _insufficient(summary, "look at what the ranks' Python does: py-spy dump --pid")
    if not num_open:
        return HangVerdict(NONE, None, [], [], _CERTAIN, "no call of any rank is open: nothing hangs")
    evidence = [HangEvidence([rank], f"in {call.call.name} of {call.group.words}") for rank, call in calls.items()]
    summary = f"{counted(num_open, 'rank is', 'ranks are')} in calls that all others have called too: nobody is behind"
    return _hang(HangKind.UNKNOWN, [], _UNKNOWN, summary, evidence[:_MAX_EVIDENCE])


def _has_unrecorded(dump: FlightDump) -> bool:
    """Whether gloo counted more calls of a group than it recorded."""
    newest: dict[int, int] = {}
    for call in dump.operations:
        if call.backend == "gloo":
            newest[call.group_id] = max(newest.get(call.group_id, 0), call.sequence)
    counts = {group: one.enqueued for group, one in dump.progress.items()}
    return any((counts.get(group) or 0) > last for group, last in newest.items())


def _hang(
    kind: HangKind,
    ranks: list[int],
    confidence: float,
    summary: str,
    evidence: list[HangEvidence],
    reasons: Sequence[Reason] = (),
) -> HangVerdict:
    """Verdict of a hang; its reason is the kind unless others are given."""
    reasons = list(reasons) or ([] if kind is HangKind.UNKNOWN else [Reason(kind.value)])
    actions = [remedy_text(reason) for reason in reasons] or [_ACTION_WITHOUT_CULPRIT]
    return HangVerdict(Cause.HANG, kind, reasons, ranks, confidence, summary, evidence, actions)


def _insufficient(summary: str, what_next: str, evidence: Sequence[HangEvidence] = ()) -> HangVerdict:
    """Verdict without a culprit because the dumps are not sufficient."""
    cause = Cause.INSUFFICIENT_EVIDENCE
    return HangVerdict(cause, HangKind.UNKNOWN, [], [], _UNKNOWN, summary, list(evidence), [what_next])
