"""NVLinks of one GPU by NVML: which are up, their errors, and the state of the fabric.

Which errors a driver reports depends on the GPU, and some only of single links: an H200 (driver 580) has no field of
all links but those of each (161 to 163, which DCGM's NVLink watch reads as well), others have
`nvmlDeviceGetNvLinkErrorCounter` alone. What has no field of all links is the sum over the links.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.collectors.nvml import binding
from stepscope.collectors.nvml.library import fields_to_ask
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.hardware.fabric import fabric_health, fabric_states, fabric_summary
from stepscope.core.metrics.readings import MissingReason

MAX_NVLINKS = 18
ALL_LINKS = 2**32 - 1
"""Scope of a field that is counted by link: the sum of all."""


_Key = tuple[int, int]
"""A field's id and scope."""
_LINKS_A_TURN = 4
"""A field of one link takes a third of a millisecond on an H200: 18 links with three are 16 ms. So all have their turn
in 50 s."""
_NO_SUCH = (binding.NOT_SUPPORTED, binding.INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True, eq=False)
class _Counter:
    """One count of errors.

    Attributes:
        metric: name without the prefix of GPU metrics.
        kind: label of its count of a single link.
        total: NVML's field of all links and its scope; None: there is none.
        of_link: NVML's field of one link, which is its scope; None: there is none.
        number: nvmlNvLinkErrorCounter_t; None: it has none.
    """

    metric: str
    kind: str
    total: _Key | None
    of_link: int | None
    number: int | None = None


_COUNTERS = (
    _Counter("nvlink_replay_errors_total", "replay", (52, 0), 161, 0),
    _Counter("nvlink_recovery_errors_total", "recovery", (59, 0), 162, 1),
    _Counter("nvlink_crc_errors_total", "crc", None, 163),
    _Counter("nvlink_crc_flit_errors_total", "crc_flit", (38, 0), None, 2),
    _Counter("nvlink_crc_data_errors_total", "crc_data", (45, 0), None, 3),
    # from NVLink 5 on
    *(
        _Counter(f"nvlink_{kind}_total", kind, (field, ALL_LINKS), field)
        for field, kind in (
            *((206, "malformed_packets"), (207, "dropped_packets"), (208, "receive_errors"), (209, "remote_errors")),
            *((210, "general_errors"), (211, "integrity_errors"), (214, "recoveries_failed"), (215, "recoveries")),
            *((219, "effective_errors"), (221, "symbol_errors")),
        )
    ),
)
_RATIOS = (("nvlink_effective_bit_error_ratio", 220), ("nvlink_symbol_error_ratio", 222))
_STATES = ("nvlink_up", "nvlink_links")


class Nvlinks:
    """Reader of one GPU's NVLinks, which asks only what its driver answers.

    Single links are asked all at first, then in turns, and all where the sum has grown. A link that is down may answer
    no more: its last count stays part of the sum.
    """

    def __init__(self) -> None:
        self._no_links: NoValue | None = None
        self._up: set[int] = set()
        self._asked: set[int] = set()
        self._turn = 0
        self._unsupported: dict[_Key, NoValue] = {}
        self._totals: dict[_Counter, int] = {}
        self._counts: dict[_Counter, dict[int, int]] = {counter: {} for counter in _COUNTERS}
        self._ratios: dict[int, dict[int, float]] = {field: {} for _, field in _RATIOS}

    def read(self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        if self._no_links is None:
            self._read_states(nvml, handle, into)
        if self._no_links is not None:
            into.miss(_STATES, self._no_links)
        turn = self._next_turn()
        wanted = [one.total for one in _COUNTERS if one.total is not None] + [
            (field, ALL_LINKS) for _, field in _RATIOS
        ]
        totals = self._fields(nvml, handle, wanted)
        links = {counter: self._links_to_ask(counter, totals, turn) for counter in _COUNTERS}
        by_link = [(one.of_link, link) for one in _COUNTERS if one.of_link is not None for link in links[one]]
        by_link += [
            (field, link) for _, field in _RATIOS if not isinstance(totals[field, ALL_LINKS], int) for link in turn
        ]
        answers = self._fields(nvml, handle, by_link)
        for counter in _COUNTERS:
            if counter.of_link is not None:
                found = {link: answers[counter.of_link, link] for link in links[counter]}
                self._counts[counter] |= {link: count for link, count in found.items() if isinstance(count, int)}
            self._ask_counter(nvml, handle, counter, links[counter])
            self._add_count(counter, totals, into)
        for metric, field in _RATIOS:
            total = totals[field, ALL_LINKS]
            found = {link: answers.get((field, link), total) for link in turn}
            self._ratios[field] |= {link: _error_ratio(one) for link, one in found.items() if isinstance(one, int)}
            if isinstance(total, int):
                into.add_raw(metric, _error_ratio(total))
            elif self._ratios[field]:
                into.add_raw(metric, max(self._ratios[field].values()))
            else:
                into.add(metric, total)

    def _next_turn(self) -> list[int]:
        """Links to be asked now: those never asked, and the next ones."""
        new = self._up - self._asked
        if new or not self._up:
            self._asked |= new
            return sorted(new)
        links = sorted(self._up)
        first = self._turn % len(links)
        self._turn = first + _LINKS_A_TURN
        return sorted(set([*links, *links][first : self._turn]))

    def _links_to_ask(self, counter: _Counter, totals: dict[_Key, int | NoValue], turn: list[int]) -> list[int]:
        total = totals[counter.total] if counter.total is not None else None
        if not isinstance(total, int):
            return turn
        before = self._totals.get(counter)
        self._totals[counter] = total
        return sorted(self._up) if before is None or total != before else []

    def _read_states(self, nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
        """State of each link. A GPU has as many links as answer; the first one's error says that it has none."""
        states = []
        self._up = set()
        for link in range(MAX_NVLINKS):
            try:
                states.append(nvml.nvmlDeviceGetNvLinkState(handle, link))
            except Exception as error:
                why = binding.nvml_reason_of_error(nvml, error)
                if link and getattr(error, "value", None) in _NO_SUCH:
                    break
                if why.reason is MissingReason.NOT_SUPPORTED:
                    self._no_links = why
                else:
                    into.miss(_STATES, why)
                return
        self._up = {link for link, state in enumerate(states) if state}
        for link, state in enumerate(states):
            into.add_raw("nvlink_up", state, link=link)
        into.add_raw("nvlink_links", len(self._up), state="up")
        into.add_raw("nvlink_links", len(states) - len(self._up), state="down")

    def _ask_counter(self, nvml: binding.Nvml, handle: binding.Handle, counter: _Counter, links: list[int]) -> None:
        """Read NVML's counter of these links, where no field tells as much."""
        if counter.number is None or counter in self._totals:
            return
        if any(self._counts[one] for one in _COUNTERS if counter.kind.startswith(one.kind) and one.of_link):
            return
        for link in links:
            key = (-1 - counter.number, link)  # no field's
            if key in self._unsupported:
                continue
            try:
                count = nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter.number)
            except Exception as error:
                why = binding.nvml_reason_of_error(nvml, error)
                if why.reason is MissingReason.NOT_SUPPORTED:
                    self._unsupported[key] = why
                continue
            if not binding.is_nvml_sentinel(count):
                self._counts[counter][link] = count

    def _add_count(self, counter: _Counter, totals: dict[_Key, int | NoValue], into: binding.GpuReadings) -> None:
        counts = self._counts[counter]
        for link, count in sorted(counts.items()):
            if count:
                into.add_raw("nvlink_link_errors_total", count, link=link, kind=counter.kind)
        total = totals[counter.total] if counter.total is not None else NoValue(MissingReason.NOT_SUPPORTED)
        if isinstance(total, int):
            into.add_raw(counter.metric, total)
        elif counts:
            into.add_raw(counter.metric, sum(counts.values()))
        else:
            into.add(counter.metric, total)

    def _fields(self, nvml: binding.Nvml, handle: binding.Handle, wanted: list[_Key]) -> dict[_Key, int | NoValue]:
        """Field values, or why there is none."""
        asked = [one for one in wanted if one not in self._unsupported]
        answers: dict[_Key, int | NoValue] = {one: why for one in wanted if (why := self._unsupported.get(one))}
        if not asked:
            return answers
        try:
            values = fields_to_ask(asked)
            nvml.nvmlDeviceGetFieldValues(handle, values)
        except Exception as error:
            return answers | dict.fromkeys(asked, binding.nvml_reason_of_error(nvml, error))
        for one, value in zip(asked, values, strict=True):
            answer = binding.field_value(value)
            if isinstance(answer, NoValue) and answer.reason is MissingReason.NOT_SUPPORTED:
                self._unsupported[one] = answer
            answers[one] = answer if isinstance(answer, NoValue) else int(answer)
        return answers


def _error_ratio(packed: int) -> float:
    """NVML's error ratio: 4 bits of mantissa and 8 of the exponent to 10."""
    mantissa, exponent = packed >> 8 & 0xF, packed & 0xFF
    no_error = (mantissa, exponent) == (15, 255)  # the smallest that can be written
    return 0.0 if no_error else mantissa * 10.0**-exponent


def read_fabric(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    """State and health of the registration with the fabric (NVSwitch systems from Hopper on)."""
    info = nvml.nvmlDeviceGetGpuFabricInfoV(handle, 3)
    _add_fabric(info.state, info.status, fabric_health(info.healthMask) | fabric_summary(info.healthSummary), into)


def read_fabric_without_summary(nvml: binding.Nvml, handle: binding.Handle, into: binding.GpuReadings) -> None:
    """The same from an older driver."""
    info = nvml.nvmlDeviceGetGpuFabricInfoV(handle, 2)
    _add_fabric(info.state, info.status, fabric_health(info.healthMask), into)


def _add_fabric(state: int, status: int, health: dict[str, float], into: binding.GpuReadings) -> None:
    for name, value in fabric_states(state, has_failed=bool(status)).items():
        into.add("fabric_state", value, state=name)
    for aspect, value in health.items():
        into.add("fabric_health", value, aspect=aspect)
