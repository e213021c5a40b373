"""Communication that can be avoided or made cheaper: its changes as models of headroom, by replay of the ranks' traces.

Each is seen in the calls themselves: gradients of the same sizes reduced in every backward pass of a step, reductions
of float32 for compute in 16 bits, many calls that are mostly latency. A replay without them, or with other sizes, also
tells what of it compute hides today and would hide then.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.collectives.calls import Call
from stepscope.analyzer.headroom.changes import Changed, JobFacts, KnownChange
from stepscope.analyzer.headroom.step_model import Span, StepModel
from stepscope.analyzer.intervals import Intervals, Nanoseconds, clip, empty, join
from stepscope.analyzer.job_time.loss import REPLAY
from stepscope.analyzer.what_if import changed_communication as changed
from stepscope.analyzer.what_if.changed_communication import TransferCost
from stepscope.analyzer.what_if.pipeline_schedule import MAX_MODEL_ERROR
from stepscope.analyzer.what_if.predictions import max_slots
from stepscope.analyzer.what_if.replay import ReplayModel, Scenario
from stepscope.core.documents.analysis import Analysis, Headroom, PredictedFix, Verdict
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Change
from stepscope.trace.columns import NONE

_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_OF_GRADIENTS = frozenset({"float", "double", "half", "bfloat16"})
_LEAST_PART = 0.01
"""Of a step's largest reduction: smaller ones are losses, norms and flags."""

BUCKET_BYTES = 100 * 2**20
"""Size of a bucket that is advised."""
_LEAST_UNITS = 4
"""Of a model that are left when small ones are merged: each is gathered while another computes."""
_LATENCY_PART = 0.3
"""Of a gather's time from which its unit is too small."""


class GradientCall(NamedTuple):
    """A reduction of gradients: the number of its communication in the replay, and the call."""

    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class Exchange:
    """The communication of a job, ready to be replayed otherwise.

    Attributes:
        calls: by number of the communication, on the job's clock.
        issued_ns: by number, when the host issued it, on the rank's own clock.
        first: by rank, its first number.
        replayed_ms: the step of the unchanged replay.
    """

    model: ReplayModel
    facts: JobFacts
    calls: list[Call]
    issued_ns: Nanoseconds
    first: dict[int, int]
    replayed_ms: float

    def steps(self, kinds: frozenset[str]) -> Iterator[tuple[int, list[GradientCall]]]:
        """Of each rank and step its calls of these kinds among data-parallel ranks, in issue order."""
        for rank, begin in self.first.items():
            by_step: dict[int, list[GradientCall]] = defaultdict(list)
            for place, call in enumerate(self.facts.views[rank].calls):
                if call.kind in kinds and call.step >= 0 and call.dimension in ("dp", None) and call.num_bytes:
                    by_step[call.step].append(GradientCall(begin + place, call))
            for step in sorted(by_step):
                yield rank, by_step[step]

    def gradients(self, kinds: frozenset[str] = _REDUCTIONS) -> Iterator[tuple[int, list[GradientCall]]]:
        """Of each rank and step its reductions of gradients, in issue order."""
        for rank, calls in self.steps(kinds):
            own = [one for one in calls if one.call.dtype is None or one.call.dtype in _OF_GRADIENTS]
            largest = max((one.call.num_bytes or 0 for one in own), default=0)
            yield rank, [one for one in own if (one.call.num_bytes or 0) >= _LEAST_PART * largest]

    @property
    def num_bytes(self) -> list[int]:
        """Of each communication; 0 where unknown."""
        return [call.num_bytes or 0 for call in self.calls]

    def costs(self, kind: str) -> list[TransferCost]:
        """What a transfer of a kind takes, by the rank that waits least for the others and for calls before it."""
        least: dict[tuple[int, int], tuple[int, int]] = {}
        base = self.model.base.transfer_ns
        for rank, begin in self.first.items():
            ordinals: Counter[int] = Counter()
            for place, call in enumerate(self.facts.views[rank].calls):
                if call.kind == kind and call.num_bytes:
                    key = call.step, ordinals[call.step]
                    ordinals[call.step] += 1
                    took = int(base[begin + place]) if call.served_ns is None else call.served_ns
                    least[key] = min(least.get(key, (call.num_bytes, took)), (call.num_bytes, took))
        return changed.fitted_costs([size for size, _ in least.values()], [took for _, took in least.values()])

    def ratio(self, scenario: Scenario) -> float:
        """Step of a scenario over that of the unchanged replay."""
        return self.model.step_ms(scenario) / self.replayed_ms


def exposed_share(analysis: Analysis) -> float:
    """Share of the captured steps in which ranks wait for communication or for each other."""
    return sum(cost.wait + cost.transfer + cost.unsplit for cost in analysis.communication_by_dimension)


def exchange_of(facts: JobFacts) -> Exchange | None:
    """The communication of a job; None for one rank, or where its traces cannot be replayed."""
    if len(facts.views) < 2 or facts.replay is None or not any(view.calls for view in facts.views.values()):
        return None
    model = facts.replay()
    if model is None or model.graph.num_slots > max_slots():
        return None
    replayed_ms, measured_ms = model.step_ms(model.base), model.measured_ms()
    if min(replayed_ms, measured_ms) <= 0 or abs(replayed_ms / measured_ms - 1) > MAX_MODEL_ERROR:
        return None
    parts = model.graph.layout.parts
    calls = [call for rank in parts for call in facts.views[rank].calls]
    first = {rank: part.first_communication for rank, part in parts.items()}
    return Exchange(model, facts, calls, _issued_ns(model), first, replayed_ms)


def _issued_ns(model: ReplayModel) -> Nanoseconds:
    """When the host issued each communication, on the rank's own clock; else when it began."""
    layout = model.graph.layout
    issued = np.zeros(len(layout.activity_of_communication), np.int64)
    for part in layout.parts.values():
        own = layout.activity_of_communication[part.communications] - part.first_activity
        launched = part.graph.device.launched_by[own]
        host_ns = part.graph.host.key_ns[np.maximum(launched, 0)]
        issued[part.communications] = np.where(launched == NONE, part.graph.device.start_ns[own], host_ns)
    return issued


class Saving(NamedTuple):
    """What a change of communication saves.

    Attributes:
        ratios: the step after it over the step before it; the least and the most where they are not certain.
        why: what it replaces, in one clause.
    """

    ratios: list[float]
    why: str


def _applied(change: Change, saving: Saving, step: StepModel, facts: JobFacts) -> Changed | None:
    """The step after a change whose saving is known; None if it gains nothing.

    Of communication that other changes have left it saves the same part.
    """
    if min(saving.ratios) >= 1.0:
        return None
    part = step.base_ms
    if step.done & _CHANGES and facts.analysis.job_time is not None:
        exposed_ms = exposed_share(facts.analysis) * facts.analysis.job_time.mean_step_ms
        part *= min(step.exposed_ms.middle / exposed_ms, 1.0) if exposed_ms > 0 else 1.0
    most, least = (_shorter(step, part * max(1.0 - ratio, 0.0)) for ratio in (min(saving.ratios), max(saving.ratios)))
    shorter = replace(
        most,
        exposed_ms=Span(most.exposed_ms.least, least.exposed_ms.most),
        outside_ms=Span(most.outside_ms.least, least.outside_ms.most),
        host_ms=Span(most.host_ms.least, least.host_ms.most),
        done=step.done | {change},
    )
    return Changed(shorter, saving.why, _REPLAY_ERROR, basis=REPLAY)


def _shorter(step: StepModel, gain_ms: float) -> StepModel:
    """A step with less communication exposed and, for what is left of the gain, less time outside of all parts.

    The replay includes the host, so that it bounds what the host needs.
    """
    from_exposed = min(gain_ms, step.exposed_ms.least)
    rest = gain_ms - from_exposed
    outside = Span(*(max(end - rest, 0.0) for end in step.outside_ms))
    most = max(step.step_ms.most - gain_ms - step.lost_ms, 0.0)
    return replace(
        step,
        exposed_ms=Span(*(end - from_exposed for end in step.exposed_ms)),
        outside_ms=outside,
        host_ms=Span(*(min(end, most) for end in step.host_ms)),
    )


# Gradients of several micro-batches


class _Repeats(NamedTuple):
    """Reductions of a step that only the last backward pass needs.

    Attributes:
        avoidable: numbers of the communications of all passes before.
        before_last: by rank, gradients copied into buckets and back in these passes, on its own clock; empty where its
            passes are not marked.
    """

    avoidable: list[int]
    passes: int
    num_bytes: int
    before_last: dict[int, Intervals]


def _repeats(exchange: Exchange) -> _Repeats | None:
    """The same reductions in several backward passes of a step; None unless each step of each rank has them."""
    avoidable: list[int] = []
    seen: set[int] = set()
    num_bytes = 0
    spans: dict[int, Intervals] = defaultdict(empty)
    for rank, own in exchange.gradients():
        passes = _passes_of(exchange, rank, own)
        if passes is None:
            return None
        seen.add(passes)
        size = len(own) // passes
        avoidable += [one.number for one in own[:-size]]
        num_bytes = max(num_bytes, sum(one.call.num_bytes or 0 for one in own[-size:]))
        reducer = exchange.facts.views[rank].reducer
        if len(reducer.forwards_ns):
            ends = exchange.issued_ns[[own[0].number, own[-size].number]]
            begin, end = reducer.forwards_ns[np.searchsorted(reducer.forwards_ns, ends, side="right") - 1]
            spans[rank] = join(spans[rank], clip(reducer.copies, int(begin), int(end)))
    if len(seen) != 1:
        return None
    return _Repeats(avoidable, seen.pop(), num_bytes, dict(spans))


def _passes_of(exchange: Exchange, rank: int, own: list[GradientCall]) -> int | None:
    """Backward passes of a step that reduce the same gradients before one update; None unless there are several.

    Buckets of equal sizes look the same in one pass, so that the passes must be known: by the forward passes between
    which the calls lie, or by the settings.
    """
    reducer = exchange.facts.views[rank].reducer
    calls = [one.call for one in own]
    starts = exchange.issued_ns[[one.number for one in own]]
    if not len(starts) or _is_between(reducer.updates_ns, starts[0], starts[-1]):
        return None
    pass_of = np.searchsorted(reducer.forwards_ns, starts, side="right")
    settings = exchange.facts.settings
    backward = None if settings is None else settings.backward
    if len(reducer.forwards_ns):
        sizes = [len(list(group)) for _, group in itertools.groupby(pass_of.tolist())]
        passes = len(sizes) if len(set(sizes)) == 1 else 1
    else:
        passes = 1 if backward is None else backward.synchronized_passes or 1
    if passes < 2 or len(calls) % passes:
        return None
    size = len(calls) // passes
    keys = [(call.kind, call.num_bytes, call.group, call.dtype) for call in calls]
    return passes if all(keys[place] == keys[place % size] for place in range(len(keys))) else None


def _is_between(times: np.typing.NDArray[np.int64], first: int, last: int) -> bool:
    return bool(((times > first) & (times < last)).any())


def _no_sync(exchange: Exchange) -> Saving | None:
    repeats = _repeats(exchange)
    if repeats is None:
        return None
    scenario = changed.without_calls(exchange.model.base, repeats.avoidable)
    scenario = changed.without_spans(exchange.model, scenario, repeats.before_last)
    why = (
        f"the same gradients ({repeats.num_bytes / 1e6:,.1f} MB) are reduced in each of {repeats.passes} micro-batches"
    )
    return Saving([exchange.ratio(scenario)], why)


# Buckets


def _larger_buckets(exchange: Exchange) -> Saving | None:
    costs = exchange.costs("all_reduce")
    if not costs or not _is_ddp(exchange.facts):
        return None
    groups = [
        group for rank, own in exchange.gradients(frozenset({"all_reduce"})) for group in _buckets(exchange, rank, own)
    ]
    if all(len(group) == 1 for group in groups):
        return None
    issues = {rank: view.reducer.issues for rank, view in exchange.facts.views.items()}
    merged = 1.0 - len(groups) / sum(map(len, groups))
    base = changed.without_spans(exchange.model, exchange.model.base, issues, merged)
    num_bytes = exchange.num_bytes
    ratios = [exchange.ratio(changed.with_merged_calls(base, groups, num_bytes, cost, by_last=True)) for cost in costs]
    sizes = [exchange.calls[number].num_bytes or 0 for group in groups for number in group]
    num_steps = max(len({exchange.calls[number].step for group in groups for number in group}), 1)
    per_step = len(sizes) / num_steps / len(exchange.first)
    why = f"{per_step:,.0f} reductions a step of {np.mean(sizes) / 1e6:,.2f} MB, which are mostly latency"
    return Saving(ratios, why)


def _is_ddp(facts: JobFacts) -> bool:
    has_settings = facts.settings is not None and bool(facts.settings.ddp)
    return has_settings or any(len(view.reducer.forwards_ns) for view in facts.views.values())


def _buckets(exchange: Exchange, rank: int, own: list[GradientCall]) -> list[list[int]]:
    """Consecutive reductions of a step that fit into one bucket; none reaches into another backward pass."""
    forwards = exchange.facts.views[rank].reducer.forwards_ns
    groups: list[list[int]] = []
    held, before = 0, None
    for number, call in own:
        of_pass = int(np.searchsorted(forwards, exchange.issued_ns[number], side="right"))
        key = of_pass, call.group, call.dtype
        num_bytes = call.num_bytes or 0
        if key != before or held + num_bytes > BUCKET_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held, before = held + num_bytes, key
    return groups


# Search for unused parameters


def _no_search(exchange: Exchange) -> Saving | None:
    """Without the walk over the graph and the reduction of its result, where all parameters are used."""
    facts = exchange.facts
    if not any(len(view.reducer.searches) for view in facts.views.values()):
        return None
    maps = [number for number, call in enumerate(exchange.calls) if call.kind == "all_reduce" and call.dtype == "int"]
    if not maps or not _uses_all(exchange, maps):
        return None
    scenario = changed.without_calls(exchange.model.base, maps)
    searches = {rank: view.reducer.searches for rank, view in facts.views.items()}
    scenario = changed.without_spans(exchange.model, scenario, searches)
    spent = np.mean(
        [view.reducer.searches.total / max(len(view.window.boundary_ns), 1) for view in facts.views.values()]
    )
    why = f"the search takes {spent / 1e6:,.1f} ms a step, and all parameters are used"
    return Saving([exchange.ratio(scenario)], why)


def _uses_all(exchange: Exchange, maps: list[int]) -> bool:
    """Whether each backward pass accumulates as many gradients as the map of used parameters has entries."""
    for rank, view in exchange.facts.views.items():
        for number in (number for number in maps if exchange.calls[number].rank == rank):
            began = view.reducer.forwards_ns[view.reducer.forwards_ns <= exchange.issued_ns[number]]
            since = int(began[-1]) if len(began) else None
            if since is None:
                return False
            accumulated = view.reducer.accumulated_ns
            following = view.reducer.forwards_ns[view.reducer.forwards_ns > since]
            until = int(following[0]) if len(following) else np.iinfo(np.int64).max
            num_used = int(((accumulated >= since) & (accumulated < until)).sum())
            if num_used < (exchange.calls[number].num_bytes or 0) // 4:
                return False
    return True


# Fewer bytes


def _half_gradients(exchange: Exchange) -> Saving | None:
    """Gradients of float32 reduced in 16 bits, where compute is in 16 bits: on GPUs, which convert them in passing."""
    if not exchange.model.on_device or not _computes_in_half(exchange.facts):
        return None
    numbers = [one.number for _, own in exchange.gradients() for one in own if one.call.dtype == "float"]
    kinds = {exchange.calls[number].kind for number in numbers}
    costs = exchange.costs(kinds.pop()) if len(kinds) == 1 else []
    if not costs:
        return None
    sizes = exchange.num_bytes
    base = exchange.model.base
    ratios = [exchange.ratio(changed.with_fewer_bytes(base, numbers, sizes, cost, 0.5)) for cost in costs]
    mean = np.mean([sizes[number] for number in numbers])
    why = f"gradients are reduced in float32, {mean / 1e6:,.1f} MB at a time, of compute in 16 bits"
    return Saving(ratios, why)


def _computes_in_half(facts: JobFacts) -> bool:
    settings = facts.settings
    if settings is None:
        return False
    types = set(settings.autocast.values()) | set(settings.backward.compute_types if settings.backward else ())
    return bool(types & {"bfloat16", "float16"}) and "float32" not in (
        settings.backward.compute_types if settings.backward else []
    )


# Sharding units


def _larger_units(exchange: Exchange) -> Saving | None:
    """Units of FSDP that are mostly latency, merged into larger ones."""
    gathers, scatters = exchange.costs("all_gather"), exchange.costs("reduce_scatter")
    factor = _units_to_merge(exchange, gathers[0]) if gathers and scatters else 1
    if factor < 2:
        return None
    hooks = {rank: view.reducer.units for rank, view in exchange.facts.views.items()}
    ratios = []
    for place in range(max(len(gathers), len(scatters))):
        scenario = changed.without_spans(exchange.model, exchange.model.base, hooks, 1.0 - 1.0 / factor)
        for kind, costs, by_last in (("all_gather", gathers, False), ("reduce_scatter", scatters, True)):
            groups = [
                [each.number for each in own[first : first + factor]]
                for _, own in exchange.steps(frozenset({kind}))
                for first in range(0, len(own), factor)
            ]
            cost = costs[min(place, len(costs) - 1)]
            scenario = changed.with_merged_calls(scenario, groups, exchange.num_bytes, cost, by_last=by_last)
        ratios.append(exchange.ratio(scenario))
    return Saving(ratios, f"gathers of small units are mostly latency: {factor} units as one")


def _units_to_merge(exchange: Exchange, cost: TransferCost) -> int:
    """How many neighbouring units to make one, by the layers of the model or so that enough are left; 1: none."""
    sizes = [len(own) for _, own in exchange.steps(frozenset({"reduce_scatter"}))]
    usual = np.median([call.num_bytes or 0 for call in exchange.calls if call.kind == "all_gather"])
    if not sizes or cost.latency_ns < _LATENCY_PART * cost.of(float(usual)):
        return 1
    num_units = min(sizes)
    fsdp = exchange.facts.settings.fsdp if exchange.facts.settings is not None else []
    num_layers = next((one.num_layers for one in fsdp if one.num_layers), None)
    wanted = num_layers if num_layers is not None and num_layers < num_units else _LEAST_UNITS
    return max(num_units // max(wanted, _LEAST_UNITS), 1)


def _layer_units(step: StepModel, facts: JobFacts) -> Changed | None:
    """The whole model as one unit of FSDP: by layers, most of a gather hides behind the compute of another layer."""
    fsdp = facts.settings.fsdp if facts.settings is not None else []
    layers = fsdp[0].num_layers if len(fsdp) == 1 and fsdp[0].num_units == 1 else None
    if not layers or layers < 2 or step.kernels is None:
        return None
    exposed, compute = step.exposed_ms.middle, step.compute_ms.middle
    left = exposed / layers + max(exposed * (1 - 1 / layers) - compute, 0.0)
    if left >= exposed:
        return None
    why = f"the parameters of {counted(layers, 'layer')} are gathered at once, before any of them computes"
    saving = Saving([1.0 - (exposed - left) / step.base_ms], why)
    changed_step = _applied(Change.SHARDING_UNITS, saving, step, facts)
    return None if changed_step is None else changed_step._replace(error=None, basis="model")


_REPLAY_ERROR = 0.2
"""Relative error of the step, on pairs of four ranks on CPUs: 1% on 16 cores, 7 to 50% on two busy ones."""
_LEAST_EXPOSED = 0.02
"""Of the steps: where less communication is exposed, no change of it gains enough to be worth a replay."""

_CHANGES = frozenset(
    {
        Change.NO_SYNC,
        Change.UNUSED_PARAMETERS,
        Change.LARGER_BUCKETS,
        Change.REDUCED_PRECISION_GRADIENTS,
        Change.SHARDING_UNITS,
    }
)

_SAVINGS: tuple[tuple[Change, Callable[[Exchange], Saving | None]], ...] = (
    (Change.NO_SYNC, _no_sync),
    (Change.UNUSED_PARAMETERS, _no_search),
    (Change.LARGER_BUCKETS, _larger_buckets),
    (Change.REDUCED_PRECISION_GRADIENTS, _half_gradients),
    (Change.SHARDING_UNITS, _larger_units),
)


def communication_changes(facts: JobFacts) -> list[KnownChange]:
    """The changes of a job's communication that save time, with their models."""
    if exposed_share(facts.analysis) < _LEAST_EXPOSED:
        return []
    exchange = exchange_of(facts)
    if exchange is None:
        return []
    found = [(change, saving) for change, saved in _SAVINGS if (saving := saved(exchange)) is not None]
    changes = [KnownChange(change, partial(_applied, change, saving)) for change, saving in found]
    is_left = Change.SHARDING_UNITS not in {change for change, _ in found}
    return [*changes, *([KnownChange(Change.SHARDING_UNITS, _layer_units)] if is_left else [])]


_ANSWERING_GAIN = 0.5
"""Part of the share of communication from which a change of it is the fix."""


def with_avoidable_communication(verdict: Verdict, rows: list[Headroom]) -> tuple[Verdict, list[Headroom]]:
    """The verdict of a job that communicates too much with the change that avoids most of it as its fix, and the other
    rows of the headroom."""
    if not verdict.bottleneck or verdict.cause is not Cause.COMMUNICATION:
        return verdict, rows
    own = [row for row in rows if row.change in _CHANGES]
    best = max(own, key=lambda row: row.speedup, default=None)
    if best is None or 1.0 - 1.0 / best.speedup < _ANSWERING_GAIN * (verdict.share or 0.0):
        return verdict, rows
    least, most = best.interval_ms or (best.step_ms, best.step_ms)
    is_narrow = most - least <= 2 * (best.error or 0.0) * best.step_ms
    fix = PredictedFix(
        best.action,
        best.step_ms if is_narrow else None,
        best.speedup if is_narrow else None,
        best.error,
        best.basis,
        None if is_narrow else best.interval_ms,
        best.change,
    )
    actions = [best.action, *(action for action in verdict.actions if best.action not in action)]
    head, look, files = verdict.summary.partition("; look at ")
    summary = f"{head}; {best.why}{look}{files}"
    return replace(verdict, fix=fix, actions=actions, summary=summary), [row for row in rows if row is not best]
