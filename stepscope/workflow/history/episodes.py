"""Episodes seen in scrapes: targets that do not answer, open health events, verdicts of running jobs.

Pure: time is an argument. An episode begins with the first scrape that shows it and ends with the first that does not;
times are those of the recorder, whatever the clocks of the agents say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from stepscope.core.metrics.agent import GPU_HEALTH, HOST_HEALTH, TRAINING
from stepscope.core.text.episodes import health_event_line, verdict_event_line
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels
from stepscope.workflow.history.pages import PageSeries

HEALTH_METRICS = (f"{GPU_HEALTH}_event", f"{HOST_HEALTH}_event")
VERDICT_METRIC, VERDICT_AGE = f"{TRAINING}bottleneck_ratio", f"{TRAINING}verdict_age_seconds"
WATCHED = frozenset({*HEALTH_METRICS, VERDICT_METRIC, VERDICT_AGE})
"""Metrics of agents whose series are episodes."""
_MAX_OF_TARGET = 500
"""Health events, and verdicts, of one target; more are no episodes."""
_NOT_OF_DEVICE = frozenset({"code", "action", "severity"})


class GapReason(StrEnum):
    """Why nothing is known of a target for a while: code of a gap."""

    REFUSED = "refused"
    """The machine answers, and nothing listens there."""
    TIMED_OUT = "timed_out"
    NO_SUCH_HOST = "no_such_host"
    UNREACHABLE = "unreachable"
    """The network or the machine does not answer, or the connection broke."""
    TLS = "tls"
    """No encrypted connection: its certificate is not trusted, or it wants another one."""
    NO_PERMISSION = "no_permission"
    """It wants a user, a password or a token (HTTP status 401, 403)."""
    HTTP_STATUS = "http_status"
    """It answers with another status than 200."""
    NOT_HTTP = "not_http"
    NOT_A_PAGE = "not_a_page"
    """Its answer is not, or not as a whole, a page of metrics."""
    TOO_LARGE = "too_large"
    NOT_RECORDED = "not_recorded"
    """No recorder ran."""
    NOT_KEPT = "not_kept"
    """The store did not take what the recorder had: its disk is full, or too slow."""

    @classmethod
    def of_scrapes(cls) -> tuple[GapReason, ...]:
        """Reasons of a single target."""
        return tuple(reason for reason in cls if reason not in (cls.NOT_RECORDED, cls.NOT_KEPT))


_Key = tuple[HistoryEventKind, Labels, str]
_Verdict = tuple[str, str]
"""Run and cause."""


class Episodes:
    """Episodes of all targets, from scrape to scrape.

    Args:
        before: events without an end that the history has from an earlier recorder: they go on, or end.
    """

    def __init__(self, before: Iterable[HistoryEvent] = ()) -> None:
        self._changed: dict[tuple[int, _Key], HistoryEvent] = {}
        self._gaps: dict[Labels, HistoryEvent] = {}
        self._health: dict[Labels, dict[_Key, HistoryEvent]] = {}
        self._verdicts: dict[_Verdict, HistoryEvent] = {}
        self._holders: dict[_Verdict, set[Labels]] = {}
        self._held: dict[Labels, set[_Verdict]] = {}
        self._causes: dict[str, set[str]] = {}
        self._before: dict[str, list[HistoryEvent]] = {}
        for event in before:
            labels = dict(event.labels)
            if event.kind is HistoryEventKind.VERDICT and "run" in labels:
                self._add_verdict((labels["run"], event.code), event)
            else:
                self._before.setdefault(labels.get("instance", ""), []).append(event)

    def num_open(self) -> dict[HistoryEventKind, int]:
        """Number of episodes that last."""
        return {
            HistoryEventKind.GAP: len(self._gaps),
            HistoryEventKind.HEALTH: sum(map(len, self._health.values())),
            HistoryEventKind.VERDICT: len(self._verdicts),
        }

    def take(self) -> tuple[HistoryEvent, ...]:
        """Episodes that began, changed or ended since the last call."""
        changed = tuple(self._changed.values())
        self._changed.clear()
        return changed

    def answered(self, target: Labels, time_ns: int, watched: Sequence[PageSeries]) -> HistoryEvent | None:
        """A target answered with a page; the gap that ends with it."""
        self._resume(target, time_ns)
        gap = self._gaps.pop(target, None)
        if gap is not None:
            gap = self._end(gap, time_ns)
        self._take_health(target, time_ns, watched)
        self._take_verdicts(target, time_ns, watched)
        return gap

    def failed(self, target: Labels, time_ns: int, reason: GapReason, text: str) -> HistoryEvent | None:
        """A target did not answer with a page; the gap if it begins with this scrape."""
        self._resume(target, time_ns)
        gap = self._gaps.get(target)
        if gap is not None:
            return None
        gap = self._gaps[target] = self._begin(HistoryEvent(HistoryEventKind.GAP, time_ns, None, target, reason, text))
        for verdict in list(self._held.get(target, ())):
            if self._is_live(verdict[0], but=target):
                self._release(target, verdict, time_ns)
        return gap

    def vanished(self, target: Labels, time_ns: int) -> None:
        """A target is not known to its source any more: all of it ends, and no gap begins."""
        self._resume(target, time_ns)
        gap = self._gaps.pop(target, None)
        for event in [*([gap] if gap else ()), *self._health.pop(target, {}).values()]:
            self._end(event, time_ns)
        for verdict in list(self._held.get(target, ())):
            self._release(target, verdict, time_ns)

    def settle(self, time_ns: int) -> None:
        """All targets were scraped: what an earlier recorder left open and nobody has any more ends."""
        for events in self._before.values():
            for event in events:
                self._end(event, time_ns)
        self._before.clear()
        for verdict in [verdict for verdict in self._verdicts if not self._holders.get(verdict)]:
            self._end_verdict(verdict, time_ns)

    def _resume(self, target: Labels, time_ns: int) -> None:
        """Take over what an earlier recorder left open of a target; of one with other labels now it ends."""
        if not self._before:
            return
        for event in self._before.pop(dict(target).get("instance", ""), ()):
            if event.kind is HistoryEventKind.GAP and event.labels == target:
                self._gaps[target] = event
            elif event.kind is HistoryEventKind.HEALTH and set(target) <= set(event.labels):
                self._health.setdefault(target, {})[_key(event)] = event
            else:
                self._end(event, time_ns)

    def _take_health(self, target: Labels, time_ns: int, watched: Sequence[PageSeries]) -> None:
        seen: dict[_Key, HistoryEvent] = {}
        for series in watched:
            if series.metric in HEALTH_METRICS and series.value == 1.0 and len(seen) < _MAX_OF_TARGET:
                event = _health_event(series, time_ns)
                seen.setdefault(_key(event), event)
        known = self._health.get(target, {})
        if seen.keys() != known.keys():
            for key in known.keys() - seen.keys():
                self._end(known[key], time_ns)
            now = {key: known[key] if key in known else self._begin(event) for key, event in seen.items()}
            self._health[target] = now

    def _take_verdicts(self, target: Labels, time_ns: int, watched: Sequence[PageSeries]) -> None:
        held = self._held.get(target, set())
        values: dict[_Verdict, float] = {}
        judged, unjudged = set[str](), set[str]()
        for series in watched:
            run, cause = _label(series, "run"), _label(series, "cause")
            if series.metric == VERDICT_METRIC and run and cause and len(values) < _MAX_OF_TARGET:
                values[run, cause] = series.value
                judged.add(run)
            elif series.metric == VERDICT_AGE:
                unjudged.add(run)
        # of a run whose verdict is not known now, the last one stays
        seen = values.keys() | {verdict for verdict in held if verdict[0] in unjudged - judged}
        for verdict in held - seen:
            self._release(target, verdict, time_ns)
        for verdict in seen - held:
            self._hold(target, verdict, time_ns, values[verdict])
        for run in judged:
            self._supersede(run, seen, time_ns)

    def _hold(self, target: Labels, verdict: _Verdict, time_ns: int, share: float) -> None:
        if verdict not in self._verdicts:
            run, cause = verdict
            labels = (("run", run),)
            text = verdict_event_line(cause, share)
            event = self._begin(HistoryEvent(HistoryEventKind.VERDICT, time_ns, None, labels, cause, text))
            self._add_verdict(verdict, event)
        self._holders.setdefault(verdict, set()).add(target)
        self._held.setdefault(target, set()).add(verdict)

    def _add_verdict(self, verdict: _Verdict, event: HistoryEvent) -> None:
        self._verdicts[verdict] = event
        self._causes.setdefault(verdict[0], set()).add(verdict[1])

    def _release(self, target: Labels, verdict: _Verdict, time_ns: int) -> None:
        held = self._held[target]
        held.discard(verdict)
        if not held:
            del self._held[target]
        holders = self._holders[verdict]
        holders.discard(target)
        if not holders:
            self._end_verdict(verdict, time_ns)

    def _end_verdict(self, verdict: _Verdict, time_ns: int) -> None:
        self._end(self._verdicts.pop(verdict), time_ns)
        self._holders.pop(verdict, None)
        causes = self._causes[verdict[0]]
        causes.discard(verdict[1])
        if not causes:
            del self._causes[verdict[0]]

    def _supersede(self, run: str, seen: set[_Verdict], time_ns: int) -> None:
        """End the verdicts of a run that only targets without an answer, or an earlier recorder, know."""
        for cause in list(self._causes.get(run, ())):
            verdict = run, cause
            if verdict in seen:
                continue
            for target in [one for one in self._holders.get(verdict, ()) if one in self._gaps]:
                self._release(target, verdict, time_ns)
            if verdict in self._verdicts and not self._holders.get(verdict):
                self._end_verdict(verdict, time_ns)

    def _is_live(self, run: str, *, but: Labels) -> bool:
        holders = (self._holders.get((run, cause), set()) for cause in self._causes.get(run, ()))
        return any(target not in self._gaps for targets in holders for target in targets if target != but)

    def _begin(self, event: HistoryEvent) -> HistoryEvent:
        self._changed[event.start_ns, _key(event)] = event
        return event

    def _end(self, event: HistoryEvent, time_ns: int) -> HistoryEvent:
        ended = replace(event, end_ns=max(time_ns, event.start_ns))
        self._changed[event.start_ns, _key(event)] = ended
        return ended


def _key(event: HistoryEvent) -> _Key:
    return event.kind, event.labels, event.code


def _label(series: PageSeries, name: str) -> str:
    return next((value for label, value in series.labels if label == name), "")


def _health_event(series: PageSeries, time_ns: int) -> HistoryEvent:
    labels = tuple(pair for pair in series.labels if pair[0] not in _NOT_OF_DEVICE)
    code = _label(series, "code")
    text = health_event_line(code, _label(series, "severity"), _label(series, "action"))
    return HistoryEvent(HistoryEventKind.HEALTH, time_ns, None, labels, code, text)
