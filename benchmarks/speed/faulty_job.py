"""A large job with known faults, imitated from the views of a small recorded one.

Every rank repeats the kernels and calls of one recorded rank, at its own pace. Nodes hold eight ranks; gathers, and
every other reduction, stay in the node, the others join the ranks of one place in all nodes. The job is run again in
time order: a call ends one transfer after its last member arrives; a device that idled until a call ended does so
again, and what follows a gather waits for it. So a fault on one rank delays the others as in a real job, and nothing of
the analysis is used to make its truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import Call
from stepscope.analyzer.ledger.segments import OWN_CAUSE, Segments
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, RankGraph
from stepscope.core.vocabulary import CATEGORY_CODE, COMPUTE_CATEGORIES, Cause, TimeCategory
from stepscope.trace.columns import NONE, ProcessGroup

NODE_RANKS = 8
_LATEST_END_NS = 2_000
"""Members leave a call so far apart at most."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the job; a node or rank of None is healthy.

    Attributes:
        slow_rank, slower: its kernels take so many times as long.
        bad_node, transfers: the calls inside this node transfer so many times as long.
        starved_node, data_wait_ns: each of its ranks waits so long for the data of each step, give or take a twentieth.
        spread: standard deviation of the ranks' pace, a third of it from step to step.
    """

    slow_rank: int | None = None
    slower: float = 1.0
    bad_node: int | None = None
    transfers: float = 1.0
    starved_node: int | None = None
    data_wait_ns: int = 0
    spread: float = 0.004

    def truth(self) -> dict[Cause, list[int]]:
        """By cause, the ranks that are to be named."""
        nodes = {Cause.COMMUNICATION: self.bad_node, Cause.DATA_LOADING: self.starved_node}
        named = {cause: ranks_of_node(node) for cause, node in nodes.items() if node is not None}
        return named if self.slow_rank is None else {Cause.STRAGGLER: [self.slow_rank], **named}


def ranks_of_node(node: int) -> list[int]:
    """The ranks of a node."""
    return list(range(node * NODE_RANKS, (node + 1) * NODE_RANKS))


def drawn_faults(seed: int, num_ranks: int, step_ns: float) -> Faults:
    """Three faults in different nodes, places and sizes drawn by the seed."""
    random = np.random.default_rng(seed)
    slow, bad, starved = random.choice(num_ranks // NODE_RANKS, 3, replace=False).tolist()
    return Faults(
        slow_rank=slow * NODE_RANKS + int(random.integers(NODE_RANKS)),
        slower=float(random.uniform(1.15, 1.8)),
        bad_node=bad,
        transfers=float(random.uniform(5, 12)),
        starved_node=starved,
        data_wait_ns=int(random.uniform(0.15, 0.6) * step_ns),
    )


def imitated_job(recorded: Sequence[RankView], num_ranks: int, faults: Faults, seed: int) -> list[RankView]:
    """The views of all ranks, one a rank.

    Args:
        recorded: views of a small job on one clock whose ranks make the same calls in each step.
        num_ranks: a multiple of `NODE_RANKS`.
    """
    if num_ranks % NODE_RANKS or any(view.graph is None for view in recorded):
        raise SystemExit(f"the number of ranks must be a multiple of {NODE_RANKS}, and the recorded ranks need a GPU")
    return _Imitation(recorded, num_ranks, faults, np.random.default_rng(seed)).views()


class _Recorded:
    """One recorded rank: its segments cut at its events, and its calls in steps.

    An event is (time, whether a call begins, call or NONE): NONE begins a step.
    """

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.calls = [call for call in view.calls if call.step >= 0]
        is_exposed = view.segments.category == CATEGORY_CODE[TimeCategory.COMMUNICATION_UNSPLIT]
        ends = np.array([call.end_ns for call in self.calls], np.int64)
        at = np.searchsorted(view.segments.start_ns, ends, side="left") - 1
        blocks = is_exposed[at] & (view.segments.end_ns[at] >= ends)
        elastic = np.zeros(len(view.segments), np.bool_)
        elastic[at[blocks]] = True
        blocks |= np.array([call.kind == "all_gather" for call in self.calls])
        first = view.window.start_ns
        self.events = sorted(
            [(begin, False, NONE) for begin in view.window.boundary_ns.tolist()]
            + [(call.start_ns, True, k) for k, call in enumerate(self.calls)]
            + [(call.end_ns, False, k) for k, call in enumerate(self.calls) if blocks[k]]
        )
        self.times = np.array(sorted({first, *(event[0] for event in self.events)}), np.int64)
        self.step = np.clip(np.searchsorted(view.window.boundary_ns, self.times, side="right") - 1, 0, None)
        cuts = self.times[(self.times > first) & (self.times < view.window.end_ns)]
        bounds = np.unique(np.concatenate((view.segments.start_ns, view.segments.end_ns, cuts)))
        inside = np.searchsorted(view.segments.start_ns, bounds[:-1], side="right") - 1
        covered = bounds[:-1] < view.segments.end_ns[inside]
        self.start, self.end, self.of = bounds[:-1][covered], bounds[1:][covered], inside[covered]
        length = self.end - self.start
        computes = np.isin(view.segments.category, [CATEGORY_CODE[one] for one in COMPUTE_CATEGORIES])[self.of]
        self._bounds = np.concatenate((self.start, self.end[-1:]))
        self._compute = np.concatenate(([0], np.cumsum(np.where(computes, length, 0))))
        self._rest = np.concatenate(([0], np.cumsum(np.where(computes | elastic[self.of], 0, length))))
        self.kept = ~elastic[self.of]

    def lasts(self, event: Times, until: Times, pace: npt.NDArray[np.float64]) -> Times:
        """What the work from events, given by their places in `times`, until then takes at a pace, ns."""
        since = self.times[event]
        compute = np.interp(until, self._bounds, self._compute) - np.interp(since, self._bounds, self._compute)
        rest = np.interp(until, self._bounds, self._rest) - np.interp(since, self._bounds, self._rest)
        lasts: Times = np.rint(compute * pace + rest).astype(np.int64)
        return lasts

    @property
    def signature(self) -> list[tuple[int, str, int | None]]:
        return [(call.step, call.kind, call.num_bytes) for call in self.calls]


class _Imitation:
    """The job's ranks in time; arrays over calls and ranks."""

    def __init__(
        self, recorded: Sequence[RankView], num_ranks: int, faults: Faults, random: np.random.Generator
    ) -> None:
        self._recorded = [_Recorded(view) for view in recorded]
        if any(one.signature != self._recorded[0].signature for one in self._recorded):
            raise SystemExit("the recorded ranks make different calls: give others")
        self._num_ranks, self._faults, self._random = num_ranks, faults, random
        calls = self._recorded[0].calls
        ordinals = Counter[str]()
        self._in_node = []
        for call in calls:
            ordinals[call.kind] += 1
            self._in_node.append(call.kind == "all_gather" or (call.kind == "all_reduce" and ordinals[call.kind] % 2))
        ranks = np.arange(num_ranks)
        self._groups = (ranks % NODE_RANKS, ranks // NODE_RANKS)
        """By whether a call is in the node: the group of each rank."""
        num_steps = max(len(view.window.boundary_ns) for view in recorded)
        self._pace = 1 + random.normal(0, faults.spread, (num_ranks, 1))
        self._pace = self._pace + random.normal(0, faults.spread / 3, (num_ranks, num_steps))
        if faults.slow_rank is not None:
            self._pace[faults.slow_rank] *= faults.slower
        self._wait = np.zeros((num_ranks, num_steps), np.int64)
        if faults.starved_node is not None:
            own = ranks_of_node(faults.starved_node)
            self._wait[own] = faults.data_wait_ns * random.normal(1, 0.05, (NODE_RANKS, num_steps))
        self._start = np.full((len(calls), num_ranks), NONE, np.int64)
        self._end = np.full((len(calls), num_ranks), NONE, np.int64)
        self._run()

    def _run(self) -> None:
        """Let all ranks run until each has passed its last event."""
        rows = [np.arange(at, self._num_ranks, len(self._recorded)) for at in range(len(self._recorded))]
        self._before = [
            np.zeros((len(one.times), len(own)), np.int64) for one, own in zip(self._recorded, rows, strict=True)
        ]
        self._after = [table.copy() for table in self._before]
        place = [0] * len(rows)
        while any(at < len(one.events) for at, one in zip(place, self._recorded, strict=True)):
            for number, own in enumerate(rows):
                place[number] = self._run_one(number, own, place[number])
            arrived = (self._start >= 0).all(axis=1) & (self._end[:, 0] == NONE)
            for call in np.flatnonzero(arrived).tolist():
                self._finish(call)

    def _run_one(self, number: int, own: Times, place: int) -> int:
        """Let the ranks that repeat one recorded rank run until they need a call that has not ended; the next event."""
        one, before, after = self._recorded[number], self._before[number], self._after[number]
        while place < len(one.events):
            time, begins, call = one.events[place]
            if not begins and call != NONE and self._end[call, own[0]] == NONE:
                break
            at = int(np.searchsorted(one.times, time))
            if place == 0 or one.events[place - 1][0] != time:  # the first event at this time
                before[at] = one.times[0]
                if at > 0:
                    before[at] = after[at - 1] + one.lasts(
                        np.array([at - 1]), np.array([time]), self._pace[own, one.step[at - 1]]
                    )
                after[at] = before[at]
            if call == NONE:
                after[at] += self._wait[own, one.step[at]]
            elif begins:
                self._start[call, own] = after[at]
            else:
                after[at] = np.maximum(after[at], self._end[call, own])
            place += 1
        return place

    def _finish(self, call: int) -> None:
        """End a call in which all members have arrived."""
        own = [one.calls[call] for one in self._recorded]
        transfer = min(one.end_ns for one in own) - max(one.start_ns for one in own)
        calls = self._recorded[0].calls
        before = [k for k in range(call) if calls[k].stream == calls[call].stream]
        if before:
            self._start[call] = np.maximum(self._start[call], self._end[before[-1]])
        group = self._groups[self._in_node[call]]
        arrived = np.zeros(group.max() + 1, np.int64)
        np.maximum.at(arrived, group, self._start[call])
        takes = np.full(len(arrived), max(transfer, 1_000))
        if self._in_node[call] and self._faults.bad_node is not None:
            takes[self._faults.bad_node] = int(takes[self._faults.bad_node] * self._faults.transfers)
        late = self._random.integers(_LATEST_END_NS, size=self._num_ranks)
        self._end[call] = (arrived + takes)[group] + late

    def views(self) -> list[RankView]:
        """All ranks as the recorded ones, in their new times."""
        return [self._view(rank) for rank in range(self._num_ranks)]

    def _view(self, rank: int) -> RankView:
        number, place = rank % len(self._recorded), rank // len(self._recorded)
        one = self._recorded[number]
        view = one.view
        before, after = self._before[number][:, place], self._after[number][:, place]

        def moved(times: npt.ArrayLike, *, ends: bool = False) -> Times:
            """New times; of an end, before what the rank waits for at that instant."""
            at = np.asarray(times, np.int64)
            event = np.searchsorted(one.times, at, side="left" if ends else "right") - 1
            new = after[event] + one.lasts(event, at, self._pace[rank, one.step[event]])
            return np.where(event < 0, at, new)

        waits = after > before
        starts_step = np.isin(one.times, view.window.boundary_ns)[waits]
        codes = np.where(starts_step, _LOADING, _COMMUNICATION).astype(np.int8)
        kept = one.kept
        start = np.concatenate((moved(one.start[kept]), before[waits]))
        order = np.argsort(start, kind="stable")
        segments = Segments(
            start[order],
            np.concatenate((moved(one.end[kept], ends=True), after[waits]))[order],
            np.concatenate((view.segments.category[one.of[kept]], codes))[order],
            np.concatenate((view.segments.cause[one.of[kept]], OWN_CAUSE[codes]))[order],
        )
        window = replace(
            view.window,
            start_ns=int(before[0]),
            end_ns=int(moved(view.window.end_ns, ends=True)),
            boundary_ns=before[np.searchsorted(one.times, view.window.boundary_ns)],
        )
        assert view.graph is not None
        calls = iter(zip(self._start[:, rank].tolist(), self._end[:, rank].tolist(), self._in_node, strict=True))
        groups = self._groups_of(rank)
        moved_calls = []
        for call in view.calls:
            if call.step < 0:  # before the window, where nothing is moved
                moved_calls.append(replace(call, rank=rank, group=groups[False]))
                continue
            begin, end, in_node = next(calls)
            moved_calls.append(replace(call, rank=rank, start_ns=begin, end_ns=end, group=groups[in_node]))
        header = replace(
            view.header,
            rank=rank,
            path=f"rank{rank}.json",
            world_size=self._num_ranks,
            host_name=f"node{rank // NODE_RANKS}",
            groups=tuple(
                ProcessGroup(name, name, ranks)
                for name, ranks in zip(("dp_replicate", "dp_shard"), groups, strict=True)
            ),
        )
        return replace(
            view,
            rank=rank,
            header=header,
            window=window,
            segments=segments,
            calls=moved_calls,
            graph=_moved_graph(view.graph, moved_calls, moved, self._wait[rank], view.window.boundary_ns),
            host_work=replace(
                view.host_work, load_waits_ns=_longer(view.host_work.load_waits_ns, self._wait[rank].tolist())
            ),
            kernels=[replace(k, ms=k.ms * float(self._pace[rank].mean())) for k in view.kernels],
        )

    def _groups_of(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks that a rank shares calls with: those of its place in all nodes, those of its node."""
        across = tuple(range(rank % NODE_RANKS, self._num_ranks, NODE_RANKS))
        return across, tuple(ranks_of_node(rank // NODE_RANKS))


_LOADING = CATEGORY_CODE[TimeCategory.DATA_LOADING]
_COMMUNICATION = CATEGORY_CODE[TimeCategory.COMMUNICATION_UNSPLIT]


def _longer(waits_ns: Sequence[int], more_ns: Sequence[int]) -> tuple[int, ...]:
    """Waits for batches, the last of them those of the captured steps."""
    more = [0] * max(len(waits_ns) - len(more_ns), 0) + list(more_ns)
    return tuple(a + b for a, b in zip(waits_ns or [0] * len(more), more, strict=False))


def _moved_graph(
    graph: RankGraph, calls: Sequence[Call], moved: Callable[..., Times], waits_ns: Times, boundary_ns: Times
) -> RankGraph:
    device, host = graph.device, graph.host
    start, end = moved(device.start_ns), moved(device.end_ns, ends=True)
    communicates = np.flatnonzero(device.call != NONE)
    start[communicates] = [calls[call].start_ns for call in device.call[communicates].tolist()]
    end[communicates] = [calls[call].end_ns for call in device.call[communicates].tolist()]
    work = host.work_ns.copy()
    for begin, wait in zip(boundary_ns.tolist(), waits_ns.tolist(), strict=True):
        first = min(int(np.searchsorted(host.key_ns, begin)), len(host) - 1)
        work[first, HOST_COLUMN[Cause.DATA_LOADING]] += wait
    return replace(
        graph,
        device=replace(device, start_ns=start, end_ns=np.maximum(start, end)),
        host=replace(host, key_ns=moved(host.key_ns), work_ns=work),
    )
