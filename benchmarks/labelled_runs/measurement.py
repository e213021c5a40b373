"""Measurement of a job of the labelled runs: its bare step with and without each fault, its run, and its truth.

All blocks of steps run in one process, by turns, so that the drift of a machine cancels out; then the same loop runs
under `stepscope.profile` with every fault on.
"""

from __future__ import annotations

import itertools
import statistics
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stepscope
from benchmarks.labelled_runs.arms import Arms
from benchmarks.labelled_runs.host_limit import HOST_IS_NEAR
from benchmarks.labelled_runs.job import Bench, Fault, Job, Training

_LEAST_MEASURED, _LEAST_LEFT_OUT = 12, 4
"""Steps of a block."""
_LEAST_PROFILED = 46

_LOSS, _NO_LOSS = 0.13, 0.07
"""Of training time: from 10% on a fault is a bottleneck; between these two either answer is right."""

_TIE = 0.07
"""Of training time: faults whose gains differ by no more are equals, any of which is right as the first."""

_HEALTHY = ("compute_bound", "memory_bound")


class BlockClock:
    """Clock of a block of bare steps.

    Attributes:
        step_ms: mean time a useful one of the measured steps.
        launch_ms: until the host was through with the first of them, on an empty queue.
    """

    options: dict[str, Any] | None = None

    def __init__(self, bench: Bench, num_left_out: int, num_measured: int) -> None:
        self._bench, self._first, self._last = bench, num_left_out, num_left_out + num_measured
        self._num_done, self._num_useful, self._began = 0, 0, 0.0
        self.step_ms = self.launch_ms = 0.0

    def data(self, loader: Iterable[Any]) -> Iterable[Any]:
        return loader

    def step(self, *, is_useful: bool = True) -> None:
        self._num_done += 1
        self._num_useful += is_useful and self._num_done > self._first
        if self._num_done == self._first:
            self._bench.synchronize()
            self._began = time.perf_counter()
        elif self._num_done == self._first + 1:
            self.launch_ms = (time.perf_counter() - self._began) * 1e3
        if self._num_done == self._last:
            self._bench.synchronize()
            self.step_ms = (time.perf_counter() - self._began) * 1e3 / max(self._num_useful, 1)


class ProfiledClock:
    """Clock of a loop inside `stepscope.profile`."""

    options: dict[str, Any] | None = None

    def __init__(self, prof: Any) -> None:
        self._prof = prof

    def data(self, loader: Iterable[Any]) -> Iterable[Any]:
        batches: Iterable[Any] = self._prof.data(loader)
        return batches

    def step(self, *, is_useful: bool = True) -> None:  # noqa: ARG002 - the profile sees it itself
        self._prof.step()


class AdapterClock:
    """Clock of a framework's loop, whose adapter profiles with these options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options: dict[str, Any] | None = options

    def data(self, loader: Iterable[Any]) -> Iterable[Any]:
        return loader

    def step(self, *, is_useful: bool = True) -> None:
        pass


@dataclass(frozen=True, slots=True)
class BareSteps:
    """Bare steps with a set of faults: the means of its blocks, in the order of rounds."""

    blocks_ms: list[float]
    launch_ms: float

    @property
    def mean_ms(self) -> float:
        """Of blocks; their median, as a neighbour on the machine may take the time of one."""
        return statistics.median(self.blocks_ms)


def measure(job: Job, bench: Bench, out: Path, apart: Mapping[frozenset[str], BareSteps]) -> dict[str, Any]:
    """Run a job in the process of one rank; returns its truth, and leaves its run directory in `out`.

    Args:
        apart: bare steps that were measured in other processes, by `measure_apart`.
    """
    training = job.make(bench)
    bare = BareBlocks(job, bench, training, [on for on in sets_of(job) if on not in apart])
    bare.settle()
    bare.measure(job.num_rounds)
    options: dict[str, Any] = {"run": job.name, "out": str(out)}
    if job.dimension is not None:
        options["mesh"] = {job.dimension: bench.num_ranks}
    names = prepare_for_profile(job, training)
    num_steps = num_profiled_steps(job)
    if job.has_adapter:
        training.train(num_steps, names, AdapterClock(options))
    else:
        with stepscope.profile(**options) as prof:
            training.train(num_steps, names, ProfiledClock(prof))
    bench.synchronize()
    bare.measure(job.num_rounds_after)
    return truth(job, bare.steps() | dict(apart))


def prepare_for_profile(job: Job, training: Training) -> frozenset[str]:
    """Free the models of other arms; returns the faults that are on."""
    names = frozenset(fault.name for fault in job.faults)
    if isinstance(training, Arms):
        training.keep_only(next(iter(names), None))
    return names


def num_profiled_steps(job: Job) -> int:
    """So many that all default captures end."""
    return _multiple(job.period, _LEAST_PROFILED)


def measure_apart(job: Job, bench: Bench, sets: Sequence[frozenset[str]]) -> dict[frozenset[str], BareSteps]:
    """Bare steps with these sets of faults or changes."""
    bare = BareBlocks(job, bench, job.make(bench), sets)
    bare.settle()
    bare.measure(job.num_rounds)
    return bare.steps()


def sets_of(job: Job) -> list[frozenset[str]]:
    """Sets of faults, first all of them; of a job with changes each change, first none."""
    if job.changes:
        return [frozenset[str](), *(frozenset({change.name}) for change in job.changes if not change.is_apart)]
    names = [fault.name for fault in job.faults]
    return [frozenset(on) for num in range(len(names), -1, -1) for on in itertools.combinations(names, num)]


class BareBlocks:
    """Blocks of bare steps with each set of faults or changes, by turns."""

    def __init__(self, job: Job, bench: Bench, training: Training, sets: Sequence[frozenset[str]]) -> None:
        self._job, self._bench, self._training = job, bench, training
        self._clocks: dict[frozenset[str], list[BlockClock]] = {on: [] for on in sets}

    def settle(self) -> None:
        """The first evaluation of a process is slow, frameworks evaluate after the clock's step, changes compile."""
        for on in list(self._clocks):
            try:
                self._training.train(self._job.period + 2, on, BlockClock(self._bench, 1, 2))
            except Exception:
                if not self._job.changes or not on:
                    raise
                traceback.print_exc()  # the job as it is can be recorded without this change
                del self._clocks[on]

    def measure(self, num_rounds: int) -> None:
        num_measured = _multiple(self._job.period, _LEAST_MEASURED)
        num_left_out = _multiple(self._job.period, _LEAST_LEFT_OUT)
        for _, (on, clocks) in itertools.product(range(num_rounds), self._clocks.items()):
            clocks.append(BlockClock(self._bench, num_left_out, num_measured))
            self._training.train(num_left_out + num_measured, on, clocks[-1])

    def steps(self) -> dict[frozenset[str], BareSteps]:
        """By the faults that are on, or the change that is made."""
        return {
            on: BareSteps([clock.step_ms for clock in clocks], min(clock.launch_ms for clock in clocks))
            for on, clocks in self._clocks.items()
        }


def _multiple(period: int, least: int) -> int:
    return -(-least // period) * period


def _truth_of_changes(job: Job, bare: Mapping[frozenset[str], BareSteps]) -> dict[str, Any]:
    """What a verdict on a job without faults should say: the changes that were measured."""
    plain = bare[frozenset()]
    headroom = {}
    for change in job.changes:
        if frozenset({change.name}) not in bare:
            continue
        step_ms = bare[frozenset({change.name})].mean_ms / change.samples
        headroom[change.name] = {
            "action": change.action,
            "advice": change.advice,
            "step_ms": round(step_ms, 2),
            "gain": round(1 - step_ms / plain.mean_ms, 3),
            "is_batch": change.samples != 1,
        }
    is_host_near = plain.launch_ms > HOST_IS_NEAR * plain.mean_ms
    return {
        "what": job.what,
        "bare_ms": round(plain.mean_ms, 2),
        "fixed_ms": None,
        "fix": None,
        "num_ranks": job.num_ranks,
        "blocks_ms": {"+".join(sorted(on)) or "none": _rounded(steps.blocks_ms) for on, steps in bare.items()},
        "launch_ms": round(plain.launch_ms, 2),
        "cause": [*_HEALTHY, *job.losses, *(("host_bound",) if is_host_near else ())],
        "reasons": [],
        "bottleneck": None if job.losses or is_host_near else False,
        "headroom": headroom,
        "headroom_ms": headroom.get(job.changes[0].name, {}).get("step_ms"),
        "is_tuned": job.is_tuned,
    }


def truth(job: Job, bare: dict[frozenset[str], BareSteps]) -> dict[str, Any]:
    """What a verdict on the job should say, by construction and its bare steps; keys as of other recorded runs."""
    if job.changes:
        return _truth_of_changes(job, bare)
    everything = frozenset(fault.name for fault in job.faults)
    whole, none = bare[everything], bare[frozenset()]
    gains = {fault.name: 1 - bare[everything - {fault.name}].mean_ms / whole.mean_ms for fault in job.faults}
    faults = sorted(job.faults, key=lambda fault: -gains[fault.name])
    entry: dict[str, Any] = {
        "what": job.what,
        "bare_ms": round(whole.mean_ms, 2),
        "fixed_ms": None,
        "fix": None,
        "num_ranks": job.num_ranks,
        "blocks_ms": {"+".join(sorted(on)) or "none": _rounded(steps.blocks_ms) for on, steps in bare.items()},
        "launch_ms": round(none.launch_ms, 2),
    }
    if not faults:
        entry |= _of_none(())
        return entry | {"cause": [*_HEALTHY, *job.losses], "bottleneck": None if job.losses else False}
    share = gains[faults[0].name] if job.share is None else job.share
    is_lossless = 1 - none.mean_ms / whole.mean_ms < _LOSS
    entry |= _of_none(faults) if share < _NO_LOSS else _of_fault(faults[0], share, none, is_alone=len(faults) == 1)
    if _NO_LOSS <= share < _LOSS:
        entry |= {"bottleneck": None, "reasons": []}
        entry["cause"] += _HEALTHY if is_lossless else ()
    if share >= _NO_LOSS:
        equals = [fault for fault in faults[1:] if share - gains[fault.name] <= _TIE]
        entry["cause"] += [*(cause for fault in equals for cause in fault.cause), *job.losses]
    if job.share is not None:
        entry |= {"share": job.share}
    if len(faults) > 1:
        entry["pair"] = {
            fault.name: {
                "cause": list(fault.cause),
                "reasons": list(fault.reasons),
                "ranks": list(fault.ranks),
                "gain": round(gains[fault.name], 3),
                "fixed_ms": round(bare[everything - {fault.name}].mean_ms, 2),
            }
            for fault in faults
        }
        entry["both_gain"] = round(1 - none.mean_ms / whole.mean_ms, 3)
    return entry


def _of_none(faults: Sequence[Fault]) -> dict[str, Any]:
    small = {cause: 0.1 for fault in faults for cause in fault.cause}
    return {"cause": list(_HEALTHY), "reasons": [], "bottleneck": False, "max_share": small}


def _of_fault(fault: Fault, share: float, none: BareSteps, *, is_alone: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "cause": list(fault.cause),
        "reasons": list(fault.reasons),
        "bottleneck": True,
        "share": round(share, 3) if fault.is_whole else None,
        "fix": fault.fix,
    }
    if is_alone and fault.is_whole:
        entry["fixed_ms"] = round(none.mean_ms, 2)
    if fault.advice is not None:
        entry["advice"] = fault.advice
    if fault.ranks:
        entry["ranks"] = list(fault.ranks)
    if fault.max_confidence is not None:
        entry["max_confidence"] = fault.max_confidence
    return entry


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]
