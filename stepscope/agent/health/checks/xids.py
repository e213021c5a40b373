"""Checks of XIDs of GPUs, alone and together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.samples import (
    LATE_NS,
    CheckEvidence,
    CheckSample,
    ObservedGpu,
    SampleState,
    TimedValue,
    bad,
    good,
)
from stepscope.core.hardware.health import Action, Severity
from stepscope.core.hardware.xids import FOLLOWERS, LOST_XID, MEMORY_XIDS, REPEATABLE, XidClass, xid_of
from stepscope.core.text.numbers import counted

_UNTIL_RESET = frozenset({Action.RESET_GPU, Action.DRAIN, Action.REBOOT, Action.CHECK_MECHANICALS})
_MATTERS_LATER = frozenset({XidClass.MEMORY, XidClass.LINK, XidClass.RESET, XidClass.HARDWARE})
"""Errors that persist until something is done."""
_BEFORE_NS, _AFTER_NS = 60 * 10**9, 10 * 10**9
"""Time before and after a follower in which the error may come that it follows."""
_UNCORRECTED = ("ecc_uncorrected_errors_total", "sram_uncorrected_errors_total")
_ROW_XIDS = frozenset({63, 64})
_PROCESSES_NS = 15 * 10**9
"""A little more than the time between two reads of the processes."""
_MAX_REMEMBERED = 4096
_MAX_FAULTS = 64
_MAY_BE_AFTER_NS = 15 * 10**9
"""Energy is read every ten seconds: an XID so shortly before the reading that shows a reset may have come after it."""


@dataclass(slots=True)
class _Gpu:
    """XIDs of one GPU since the agent started, and the events that they opened."""

    counts: dict[int, float] = field(default_factory=dict)
    reported_ns: dict[int, int] = field(default_factory=dict)
    energy: TimedValue | None = None
    memory_xids: set[int] = field(default_factory=set)
    uncorrected: dict[str, TimedValue] = field(default_factory=dict)
    open_until_quiet: set[str] = field(default_factory=set)
    open_until_reset: dict[str, int] = field(default_factory=dict)
    earlier_ns: dict[int, int] = field(default_factory=dict)
    mended: set[int] = field(default_factory=set)
    pids: frozenset[str] = frozenset()
    pids_before: frozenset[str] = frozenset()
    pids_changed_ns: int = 0
    faults: deque[tuple[int, int, frozenset[str]]] = field(default_factory=lambda: deque(maxlen=_MAX_FAULTS))

    def num_victims(self, number: int) -> int:
        """Number of processes, no two of them the same, that were there when this XID came."""
        seen: set[str] = set()
        victims = 0
        for _, one, pids in self.faults:
            if one == number and pids and pids.isdisjoint(seen):
                victims += 1
                seen |= pids
        return victims


class XidChecks:
    """Health checks of the XIDs of all GPUs; `was_reset`: a GPU was reset before the last call of `samples`."""

    def __init__(self, thresholds: HealthThresholds) -> None:
        self.was_reset = False
        self._thresholds = thresholds
        self._gpus: dict[str, _Gpu] = {}
        self._recent: deque[tuple[int, str, int]] = deque(maxlen=_MAX_REMEMBERED)
        self._followers: deque[tuple[int, str, int, int]] = deque(maxlen=_MAX_REMEMBERED)

    def samples(self, gpus: dict[str, ObservedGpu], now_ns: int) -> Iterator[tuple[str, CheckSample]]:
        """Results for the XIDs since the last call, with the key of their GPU.

        Args:
            now_ns: ns since the epoch; also the time of the new XIDs.
        """
        self.was_reset = False
        for key, observed in gpus.items():
            gpu = self._gpus.setdefault(key, _Gpu())
            before_ns, anew_ns = gpu.energy.time_ns if gpu.energy else 0, _counts_anew(gpu, observed)
            if anew_ns is not None:
                self.was_reset = True
                gpu.mended |= {number for number, seen_ns in gpu.earlier_ns.items() if seen_ns <= before_ns}
                if gpu.mended >= gpu.earlier_ns.keys():
                    yield key, CheckSample("xid_earlier", now_ns, SampleState.OVER)
                times = gpu.open_until_reset.items()
                over = sorted(code for code, time_ns in times if abs(anew_ns - time_ns) > _MAY_BE_AFTER_NS)
                for code in over:
                    del gpu.open_until_reset[code]
                    yield key, CheckSample(code, now_ns, SampleState.OVER)
                gpu.memory_xids.clear()
            if _errors_count_anew(gpu, observed):  # later ones may not be contained
                gpu.memory_xids.clear()
            # Those before are kept: a process that an XID hit may have ended by the next sample.
            pids = frozenset(further[-1] for further in observed.parts.get("process_memory_bytes", {}))
            if pids != gpu.pids:
                gpu.pids_before, gpu.pids, gpu.pids_changed_ns = gpu.pids, pids, now_ns
            for number, count, came_ns in _new_xids(gpu, observed):
                since_ns = came_ns if now_ns - came_ns > LATE_NS else None
                yield from (
                    (key, replace(one, since_ns=since_ns)) for one in self._comes(key, gpu, number, count, now_ns)
                )
            if observed.page_ns is not None:
                yield key, _earlier(gpu, observed.earlier_xids, observed.page_ns)
        yield from self._left_alone(now_ns)
        for key, observed in gpus.items():
            if observed.up is not None and observed.up.value:
                for code in sorted(self._gpus[key].open_until_quiet):
                    yield key, good(code, now_ns)

    def is_contained(self, key: str) -> bool:
        """Whether all uncorrected memory errors of a GPU since its reset cost one application each (XID 94)."""
        gpu = self._gpus.get(key)
        return gpu is not None and gpu.memory_xids == {94}

    def saved(self) -> dict[str, Any]:
        """What `restore` takes, as JSON."""
        newest_ns = max((one[0] for one in self._recent), default=0)
        oldest_ns = newest_ns - _BEFORE_NS - _AFTER_NS
        return {
            "gpus": {key: _saved_gpu(gpu) for key, gpu in self._gpus.items()},
            "recent": [list(one) for one in self._recent if one[0] >= oldest_ns],
            "followers": [list(one) for one in self._followers],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where an earlier agent of the same boot ended; before the first samples."""
        for key, gpu in saved["gpus"].items():
            self._gpus[key] = _restored_gpu(gpu)
        self._recent.extend((int(at), str(key), int(number)) for at, key, number in saved["recent"])
        self._followers.extend(
            (int(at), str(key), int(number), int(count)) for at, key, number, count in saved["followers"]
        )

    def _comes(self, key: str, gpu: _Gpu, number: int, count: int, now_ns: int) -> Iterator[CheckSample]:
        if number in FOLLOWERS:
            self._followers.append((now_ns, key, number, count))
            return
        self._recent.append((now_ns, key, number))
        if number in MEMORY_XIDS:
            gpu.memory_xids.add(number)
        if number in REPEATABLE:
            has_just_changed = now_ns - gpu.pids_changed_ns < _PROCESSES_NS
            gpu.faults.append((now_ns, number, gpu.pids | gpu.pids_before if has_just_changed else gpu.pids))
            yield from self._repeats(key, gpu, number, now_ns)
        yield self._sample_of(gpu, number, now_ns, count)
        if number == 48 or (number in _ROW_XIDS and "xid_48" in gpu.open_until_reset):
            near = {one for at, whose, one in self._recent if whose == key and abs(now_ns - at) <= _BEFORE_NS}
            if 48 in near and near & _ROW_XIDS:
                message = (
                    f"XID 48 with {min(near & _ROW_XIDS)}: {xid_of(48).sentence} The row is replaced at the reset."
                )
                evidence = CheckEvidence(Severity.CRITICAL, Action.DRAIN, message)
                yield bad("xid_48", now_ns + 1, evidence, count=0, is_new=True)

    def _left_alone(self, now_ns: int) -> Iterator[tuple[str, CheckSample]]:
        """Followers without an error to follow, once the time is over in which it might have come."""
        while self._followers and not 0 <= now_ns - self._followers[0][0] < _AFTER_NS:  # clocks are set back, too
            time_ns, key, number, count = self._followers.popleft()
            if not any(-_BEFORE_NS <= at - time_ns <= _AFTER_NS for at, _, _ in self._recent):
                yield key, self._sample_of(self._gpus[key], number, now_ns, count)

    def _sample_of(self, gpu: _Gpu, number: int, time_ns: int, count: int) -> CheckSample:
        xid = xid_of(number)
        code = "gpu_lost" if number == LOST_XID else f"xid_{number}"
        if number != LOST_XID:  # its answers show whether it is back
            if xid.action in _UNTIL_RESET:
                gpu.open_until_reset[code] = time_ns
            else:
                gpu.open_until_quiet.add(code)
        message = f"XID {number}: {xid.sentence}"
        return bad(code, time_ns, CheckEvidence(xid.severity, xid.action, message), count=count, is_new=True)

    def _repeats(self, key: str, gpu: _Gpu, number: int, now_ns: int) -> Iterator[CheckSample]:
        oldest_ns = now_ns - int(self._thresholds.repeats_seconds * 1e9)
        for one in self._gpus.values():
            while one.faults and one.faults[0][0] < oldest_ns:
                one.faults.popleft()
        victims, needed = gpu.num_victims(number), self._thresholds.repeats
        elsewhere = max((one.num_victims(number) for other, one in self._gpus.items() if other != key), default=0)
        if victims >= needed and 2 * elsewhere < victims:
            gpu.open_until_quiet.add("xid_repeats")
            message = (
                f"XID {number} with {counted(victims, 'process')} one after the other, and on no other GPU of this "
                "machine half as often: it may be the GPU"
            )
            evidence = CheckEvidence(
                Severity.WARNING, Action.RUN_DIAGNOSTICS, message, float(victims), float(needed), "processes"
            )
            yield bad("xid_repeats", now_ns, evidence, is_new=True)


def _saved_gpu(gpu: _Gpu) -> dict[str, Any]:
    return {
        "counts": list(gpu.counts.items()),
        "reported_ns": list(gpu.reported_ns.items()),
        "energy": gpu.energy,
        "memory_xids": sorted(gpu.memory_xids),
        "open_until_quiet": sorted(gpu.open_until_quiet),
        "open_until_reset": list(gpu.open_until_reset.items()),
        "earlier_ns": list(gpu.earlier_ns.items()),
        "mended": sorted(gpu.mended),
        "faults": [[time_ns, number, sorted(pids)] for time_ns, number, pids in gpu.faults],
    }


def _restored_gpu(saved: Mapping[str, Any]) -> _Gpu:
    gpu = _Gpu(
        counts={int(number): float(count) for number, count in saved["counts"]},
        reported_ns={int(number): int(time_ns) for number, time_ns in saved["reported_ns"]},
        memory_xids=set(map(int, saved["memory_xids"])),
        open_until_quiet=set(map(str, saved["open_until_quiet"])),
        open_until_reset={str(code): int(time_ns) for code, time_ns in saved["open_until_reset"]},
        earlier_ns={int(number): int(time_ns) for number, time_ns in saved["earlier_ns"]},
        mended=set(map(int, saved["mended"])),
    )
    if saved["energy"] is not None:
        value, time_ns, source = saved["energy"]
        gpu.energy = TimedValue(float(value), int(time_ns), str(source))
    gpu.faults.extend((int(at), int(number), frozenset(map(str, pids))) for at, number, pids in saved["faults"])
    return gpu


def _earlier(gpu: _Gpu, numbers: list[int], page_ns: int) -> CheckSample:
    """XIDs on a page since its first collection, without those that have come again since."""
    known = gpu.counts.keys() | gpu.reported_ns.keys() | gpu.mended
    xids = [xid_of(number) for number in numbers if number not in known]
    for xid in xids:
        gpu.earlier_ns[xid.number] = min(gpu.earlier_ns.get(xid.number, page_ns), page_ns)  # clocks are set back, too
        if xid.kind in _MATTERS_LATER:
            message = (
                f"XID {xid.number} stood on DCGM's page at the first look, when it came is not known: {xid.sentence} "
                "If that was mended since, restart nv-hostengine: until then it shows the last XID"
            )
            return bad("xid_earlier", page_ns, CheckEvidence(Severity.INFO, xid.action, message))
    return good("xid_earlier", page_ns)


def _counts_anew(gpu: _Gpu, observed: ObservedGpu) -> int | None:
    """Time of the reading that shows that the driver's energy counter restarted; None if it did not."""
    before, energy = gpu.energy, observed.values.get("energy_joules_total")
    if energy is None:
        return None
    gpu.energy = energy
    is_anew = before is not None and energy.source == before.source and energy.value < before.value
    return energy.time_ns if is_anew else None


def _errors_count_anew(gpu: _Gpu, observed: ObservedGpu) -> bool:
    """Whether a count of errors that could not be corrected restarted: with the driver, or cleared by an operator."""
    is_anew = False
    for name in _UNCORRECTED:
        before, sample = gpu.uncorrected.get(name), observed.values.get(name)
        if sample is not None:
            gpu.uncorrected[name] = sample
            is_anew |= before is not None and sample.source == before.source and sample.value < before.value
    return is_anew


def _new_xids(gpu: _Gpu, observed: ObservedGpu) -> list[tuple[int, int, int]]:
    """New XIDs, the number of each, and when it came. XIDs of a source without counts have times."""
    new = []
    for (number, *_), sample in observed.parts.get("xid_errors_total", {}).items():
        xid = int(number)
        count = int(sample.value - gpu.counts.get(xid, 0.0))
        gpu.counts[xid] = sample.value
        if count > 0:
            new.append((xid, count, sample.time_ns))
    for xid, time_ns in observed.reported_xids:
        if time_ns != gpu.reported_ns.get(xid):  # earlier, too: clocks are set back
            gpu.reported_ns[xid] = time_ns
            new.append((xid, 1, time_ns))
    return new
