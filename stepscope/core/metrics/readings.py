"""Readings of collectors, and missing values with their reason.

Unknown is a `Missing` with its reason, never 0 or NaN. Labels are sorted pairs, so that equal labels compare equal and
can be keys. Polls mostly have the same metrics and labels: these are kept once (`ReadingNames`), a poll has the values
(`ReadingColumns`), and who uses them knows where those are that it needs (`ReadingSelection`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import chain
from math import isfinite
from operator import itemgetter
from sys import intern
from typing import Any, Generic, Protocol, TypeVar, overload
from weakref import WeakValueDictionary

GPU, HOST = "stepscope_gpu_", "stepscope_host_"
CGROUP, PROCESS = "stepscope_cgroup_", "stepscope_process_"
"""Prefixes of metric names."""

Labels = tuple[tuple[str, str], ...]
"""Pairs of label name and value, sorted."""

GPU_LABELS = ("gpu", "uuid", "gpu_instance", "compute_instance", "mig_profile")
"""Labels that identify the GPU of a reading: NVML's index, the UUID (of the MIG instance for its readings), and for MIG
instances NVML's ids and the profile ("1g.10gb"). Join on `uuid`: NVML's index is neither CUDA's nor the minor number
of /dev (PrincetonUniversity/jobstats#34)."""


def labels_of(**values: str | int) -> Labels:
    """Labels of a metric's reading from keywords, sorted by name."""
    return tuple(sorted((name, str(value)) for name, value in values.items()))


def with_labels(labels: Labels, **values: str | int) -> Labels:
    """Labels of a metric's reading with more added or replaced, sorted."""
    return tuple(sorted({**dict(labels), **{name: str(value) for name, value in values.items()}}.items()))


def read_labels(pairs: Any) -> Labels:
    """Labels of a metric's reading from JSON, a list of pairs.

    Raises:
        TypeError, ValueError: it is something else.
    """
    return tuple((intern(str(name)), intern(str(value))) for name, value in pairs)


class MissingReason(StrEnum):
    """Why the value of a metric is missing."""

    NOT_SUPPORTED = "not_supported"
    """This device, driver or library does not have it. Nothing to do; a newer driver may have it."""
    NO_PERMISSION = "no_permission"
    """It exists, but access is refused. `stepscope agent check` says what to grant."""
    TAKEN = "taken"
    """Another process has an exclusive resource, such as an address. Stop it, or leave this source off."""
    NOT_INSTALLED = "not_installed"
    """No library, no driver, or no kernel module. Install it where it is wanted."""
    VERSION_MISMATCH = "version_mismatch"
    """Library and driver do not match. Reboot, or reload the kernel module."""
    GONE = "gone"
    """It existed before: a GPU off its bus, a process that ended. See the GPU's health events."""
    NOT_ON_PAGE = "not_on_page"
    """A GPU that earlier pages of a dcgm-exporter had. Some have GPUs in use only; a lost one has an XID."""
    TIMED_OUT = "timed_out"
    """No answer within the deadline. The read is repeated; if it stays, look for XIDs of that GPU."""
    UNREACHABLE = "unreachable"
    """The server does not accept connections, or answers with an error. Check its address, and that it runs."""
    UNREADABLE = "unreadable"
    """An invalid answer: a sentinel, not a number, out of range. Nothing to do; the value is left out."""
    NOT_YET = "not_yet"
    """It needs two samples, or the first answer is still awaited. Wait."""
    FAILED = "failed"
    """Another error. `stepscope agent check` prints its text."""


@dataclass(frozen=True, slots=True, init=False)
class Reading:
    """One value of a metric; `__init__` takes half a frozen dataclass's time.

    Attributes:
        metric: a name of the catalogues in `core.metrics`, which have its unit.
        value: finite, in the base unit of the metric.
        labels: of the device, process, ... that the value belongs to.
        time_ns: of the read, ns since the epoch.

    Raises:
        ValueError: the value is not finite: unknown must be a `Missing`.
    """

    metric: str
    value: float
    labels: Labels
    time_ns: int

    def __init__(self, metric: str, value: float, labels: Labels, time_ns: int) -> None:
        if not isfinite(value):
            raise ValueError(f"{metric} is {value}: unknown values must be a Missing")
        _set_metric(self, metric)
        _set_value(self, value)
        _set_labels(self, labels)
        _set_time_ns(self, time_ns)


_set_metric, _set_value, _set_labels, _set_time_ns = (getattr(Reading, field.name).__set__ for field in fields(Reading))


Owner = TypeVar("Owner")
Use = TypeVar("Use")


class ReadingNames:
    """Metrics and labels of readings that come together again and again; it also knows where selected ones are."""

    __slots__ = ("_selected", "pairs")

    def __init__(self, pairs: Iterable[tuple[str, Labels]]) -> None:
        self.pairs = tuple(pairs)
        self._selected: dict[object, Any] = {}

    def selected(self, selection: ReadingSelection[Owner, Use]) -> Sequence[tuple[Owner, _Table[Use]]]:
        """What a selection wants of these readings, by owner."""
        found: Sequence[tuple[Owner, _Table[Use]]] | None = self._selected.get(selection)
        if found is None:
            found = self._selected[selection] = selection.search(self.pairs)
        return found


class ReadingColumns:
    """Readings of one time as columns. A poll has a thousand: as objects they took most of the agent's time.

    Args:
        values: finite, in base units.
        time_ns: of the read, ns since the epoch.

    Raises:
        ValueError: a value is not finite, or there are more or fewer values than names.
    """

    __slots__ = ("_readings", "names", "time_ns", "values")

    def __init__(self, names: ReadingNames, values: Sequence[float], time_ns: int) -> None:
        if len(names.pairs) != len(values):
            raise ValueError(f"as many values as names of readings are needed: {len(values)}, not {len(names.pairs)}")
        if not all(map(isfinite, values)):
            metric = next(metric for (metric, _), one in zip(names.pairs, values, strict=True) if not isfinite(one))
            raise ValueError(f"{metric} is not finite: unknown values must be a Missing")
        self.names, self.values, self.time_ns = names, values, time_ns
        self._readings: tuple[Reading, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Reading]:
        if self._readings is None:
            rows = zip(self.names.pairs, self.values, strict=True)
            self._readings = tuple([Reading(metric, value, labels, self.time_ns) for (metric, labels), value in rows])
        return iter(self._readings)


def readings_of(pairs: Iterable[tuple[str, Labels]], values: Sequence[float], times: Sequence[int]) -> Readings:
    """Readings from their metrics and labels, values and times.

    Raises:
        ValueError: see `ReadingColumns`.
    """
    if not times or times.count(times[0]) == len(times):
        return Readings((ReadingColumns(ReadingNames(pairs), values, times[0] if times else 0),))
    rows = zip(pairs, values, times, strict=True)
    return Readings((tuple([Reading(metric, value, labels, time) for (metric, labels), value, time in rows]),))


class Readings(Sequence[Reading]):
    """Readings of several blocks, which are shared with whoever has them: a part of them comes again in later polls.

    Equal to any sequence of the same readings.
    """

    __slots__ = ("blocks",)

    def __init__(self, blocks: Iterable[ReadingColumns | Sequence[Reading]]) -> None:
        self.blocks = tuple(blocks)

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __iter__(self) -> Iterator[Reading]:
        return chain.from_iterable(self.blocks)

    @overload
    def __getitem__(self, index: int) -> Reading: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Reading]: ...
    def __getitem__(self, index: int | slice) -> Reading | Sequence[Reading]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


def blocks_of(readings: Sequence[Reading]) -> Sequence[ReadingColumns | Sequence[Reading]]:
    """The blocks of which readings consist."""
    return readings.blocks if isinstance(readings, Readings) else (readings,)


class _Table(Generic[Use]):
    """What each selected reading of one owner is for, and how to take their values from all."""

    __slots__ = ("__weakref__", "pick", "uses")

    def __init__(self, uses: tuple[Use, ...], places: tuple[int, ...]) -> None:
        self.uses = uses
        first = places[0]
        self.pick: Callable[[Sequence[float]], Sequence[float]]
        self.pick = itemgetter(*places) if len(places) > 1 else itemgetter(slice(first, first + 1))


class ReadingSelection(Generic[Owner, Use]):
    """Selects readings by metric and labels; those whose names come again are not searched again.

    Args:
        find: whose a reading with this metric and these labels is, and what it is for; None: it is not wanted. Always
            the same for the same. What does not name the owner is kept once for all owners.
    """

    def __init__(self, find: Callable[[str, Labels], tuple[Owner, Use] | None]) -> None:
        self._find = find
        self._tables: WeakValueDictionary[object, _Table[Use]] = WeakValueDictionary()

    def of(self, readings: Sequence[Reading]) -> Iterator[tuple[Owner, Sequence[Use], Sequence[float], int]]:
        """The readings that are wanted, in order: of one owner and time (ns since the epoch) the uses and values."""
        for block in blocks_of(readings):
            if isinstance(block, ReadingColumns):
                for owner, table in block.names.selected(self):
                    yield owner, table.uses, table.pick(block.values), block.time_ns
            else:
                for one in block:
                    found = self._find(one.metric, one.labels)
                    if found is not None:
                        yield found[0], (found[1],), (one.value,), one.time_ns

    def search(self, pairs: Iterable[tuple[str, Labels]]) -> Sequence[tuple[Owner, _Table[Use]]]:
        """What is wanted of readings with these metrics and labels, by owner."""
        found: list[tuple[Owner, list[Use], list[int]]] = []
        for place, (metric, labels) in enumerate(pairs):
            wanted = self._find(metric, labels)
            if wanted is None:
                continue
            owner, use = wanted
            if not found or found[-1][0] != owner:
                found.append((owner, [], []))
            found[-1][1].append(use)
            found[-1][2].append(place)
        return tuple([(owner, self._table(tuple(uses), tuple(places))) for owner, uses, places in found])

    def _table(self, uses: tuple[Use, ...], places: tuple[int, ...]) -> _Table[Use]:
        """One table for all owners with the same readings: a processor's cache has it from the first of them on."""
        known = self._tables.get((uses, places))
        if known is None:
            known = self._tables[uses, places] = _Table(uses, places)
        return known


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric that could not be read.

    Attributes:
        metric: a name of the catalogues; empty when all metrics of these labels are missing.
        detail: one line for people: the driver's message, what to do; may be empty.
    """

    metric: str
    labels: Labels
    reason: MissingReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation of a collector beyond a metric's value: a contradiction, an XID, a clamped value.

    Attributes:
        code: kind: "xid", "clamped".
        message: one line for people.
        labels: of the device or process, and details for programs ("xid": "79").
        time_ns: ns since the epoch.
    """

    code: str
    message: str
    labels: Labels
    time_ns: int


@dataclass(frozen=True, slots=True)
class Collection:
    """Readings, missing values and findings of one call of a collector."""

    readings: Sequence[Reading] = ()
    missing: tuple[Missing, ...] = ()
    findings: tuple[Finding, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Collection]) -> Collection:
        """Several collections as one, in order."""
        kept = [part for part in parts if part.readings or part.missing or part.findings]
        if len(kept) == 1:
            return kept[0]
        return cls(
            Readings([block for part in kept for block in blocks_of(part.readings)]),
            tuple([missing for part in kept for missing in part.missing]),
            tuple([finding for part in kept for finding in part.findings]),
        )


class Collector(Protocol):
    """One source of metric readings."""

    def collect(self) -> Collection:
        """Read everything once. What cannot be read is in `missing`; expected errors are not raised."""
        ...
