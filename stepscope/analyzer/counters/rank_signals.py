"""Signals of one rank from the counters of a run: its own GPU, its host, its cgroup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from stepscope.analyzer.counters.signal import Signal
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.protocol.counters import GpuCounters, HostCounters, OtherProcess

UNLISTED_BYTES = 2 << 30
"""Memory in use on a GPU that no listed process has, from which on another one is there: the driver's own share and a
context take less than 1 GiB (docs/explanation/how-numbers-are-made.md)."""


class RankSignals:
    """Signals of one rank.

    Args:
        num_ranks_on: how many ranks of the job run on a GPU, by its uuid: they are no other processes.
    """

    def __init__(self, counters: RankCounters, num_ranks_on: Mapping[str, int]) -> None:
        self.rank = counters.rank
        self._messages = counters.messages
        self.uuid = main_gpu(counters)
        self._num_own = num_ranks_on.get(self.uuid or "", 1)

    @cached_property
    def _gpus(self) -> list[tuple[int, GpuCounters]]:
        return [(one.time_ns, gpu) for one in self._messages for gpu in one.gpus if gpu.uuid == self.uuid]

    @cached_property
    def _hosts(self) -> list[HostCounters]:
        return [one.host for one in self._messages if one.host is not None]

    @property
    def gpus(self) -> list[GpuCounters]:
        """The messages on its GPU, in order."""
        return [gpu for _, gpu in self._gpus]

    @property
    def has_gpu(self) -> bool:
        return bool(self._gpus)

    @property
    def has_host(self) -> bool:
        return bool(self._hosts)

    def gpu(self, name: str) -> Signal:
        """A sampled metric of the GPU."""
        return Signal.of_samples(*_samples(self.gpus, name))

    def newest_of_gpu(self, name: str) -> float | None:
        """The newest value of a metric that hardly changes."""
        values = _samples(self.gpus, name)[1]
        return next((value for value in reversed(values) if value is not None), None)

    def throttled(self, reasons: frozenset[str]) -> Signal:
        """1 while one of the driver's throttle reasons holds, else 0."""
        times: list[int] = []
        values: list[float | None] = []
        for _, gpu in self._gpus:
            if gpu.throttle_reasons is None:
                continue
            columns = [gpu.throttle_reasons[name] for name in reasons if name in gpu.throttle_reasons]
            times += gpu.times_ns
            for row in range(len(gpu.times_ns)):
                known = [column[row] for column in columns if column[row] is not None]
                values.append(max(known, default=None if columns else 0.0))  # type: ignore[type-var]
        return Signal.of_samples(times, values)

    def host(self, name: str) -> Signal:
        """A sampled metric of the host."""
        return Signal.of_samples(*_samples(self._hosts, name))

    def newest_of_host(self, name: str) -> float | None:
        """The newest value of a metric of the host that hardly changes."""
        values = _samples(self._hosts, name)[1]
        return next((value for value in reversed(values) if value is not None), None)

    def rate(self, *names: str) -> Signal | None:
        """Rate of a counter of the host, of the first of these names that was ever read; None without one."""
        for name in names:
            times, values = _samples(self._hosts, name)
            signal = Signal.of_total(times, values)
            if len(signal.corners_ns):
                return signal
        return None

    @cached_property
    def shared(self) -> Signal:
        """1 while another process than the job's own is on the GPU, else 0."""
        return Signal.of_samples([at for at, _ in self._gpus], [self._is_shared(gpu) for _, gpu in self._gpus])

    def _is_shared(self, gpu: GpuCounters) -> float | None:
        if gpu.other_processes is None:
            return None
        return float(gpu.other_processes >= self._num_own or self._unlisted_bytes(gpu) >= UNLISTED_BYTES)

    def _unlisted_bytes(self, gpu: GpuCounters) -> float:
        """Memory in use that no listed process has; 0 where that is not known."""
        used = next((value for value in reversed(gpu.values.get("memory_used_bytes", ())) if value is not None), None)
        if used is None or gpu.process_memory_bytes is None or gpu.other_memory_bytes is None:
            return 0.0
        return used - gpu.process_memory_bytes - gpu.other_memory_bytes

    def sharers(self) -> tuple[list[OtherProcess], int, float | None]:
        """Of the message with most other processes: those that are named, how many there are, and their memory."""
        shared = [gpu for _, gpu in self._gpus if self._is_shared(gpu)]
        if not shared:
            return [], 0, None
        most = max(shared, key=lambda gpu: (gpu.other_processes or 0, gpu.other_memory_bytes or 0.0))
        memory = most.other_memory_bytes
        if not most.other_processes:
            memory = self._unlisted_bytes(most)
        return list(most.others), most.other_processes or 0, memory


def main_gpu(counters: RankCounters) -> str | None:
    """The GPU of a rank of which most samples are known."""
    num = Counter[str]()
    for message in counters.messages:
        for gpu in message.gpus:
            num[gpu.uuid] += len(gpu.times_ns)
    return num.most_common(1)[0][0] if num else None


def rank_signals(counters: Iterable[RankCounters]) -> dict[int, RankSignals]:
    """Signals by rank."""
    ranks = list(counters)
    num_ranks_on = Counter(uuid for one in ranks if (uuid := main_gpu(one)) is not None)
    return {one.rank: RankSignals(one, num_ranks_on) for one in ranks}


def _samples(parts: Sequence[GpuCounters] | Sequence[HostCounters], name: str) -> tuple[list[int], list[float | None]]:
    times: list[int] = []
    values: list[float | None] = []
    for part in parts:
        if name in part.values:
            times += part.times_ns
            values += part.values[name]
    return times, values
