"""Reasons of a job's losses by counters: what coincides with a loss in time, and is large enough to explain it.

They refine losses that the step records and the captures show: a reason is added, an unexplained loss gets its cause.
None makes a loss longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.analyzer.counters.rank_signals import RankSignals
from stepscope.analyzer.counters.signal import (
    MOSTLY_COVERED,
    Floats,
    Overlap,
    Signal,
    Times,
    overlap,
    periods,
)
from stepscope.analyzer.fleet.evidence import FAULTS, MOST_CLOCK, THROTTLE_KINDS
from stepscope.analyzer.fleet.samples import FleetThresholds
from stepscope.analyzer.job_time.job_losses import JobLosses
from stepscope.analyzer.job_time.loss import TELEMETRY, CountedReasons, Loss, merged_losses
from stepscope.analyzer.job_time.steps import HostLoss
from stepscope.analyzer.job_time.training_time import TrainingTime
from stepscope.core.documents.run_directory import RankSteps
from stepscope.core.text.numbers import counted
from stepscope.core.text.wording import reason_words
from stepscope.core.vocabulary import Cause, Evidence, Notice, Reason

DEFAULT_NUM_WORKERS = 4
"""Of a loader whose settings are unknown."""
MIN_LOSS_SHARE = 0.01
"""Smaller losses are not looked at: samples of a second do not show them."""
MAX_RANKS = 16
"""Looked at for a loss of all ranks: machines of one job are alike, and one of them is enough to hold all up."""
MOSTLY_THROTTLED = 0.5
"""Least share of a loss during which the driver gives a throttle reason, for it to be that of a low clock."""
_CLOCK_QUANTILE = 0.9
"""Of a GPU's own clocks over the run: what it has when nothing holds it down."""
MIN_NETWORK_BYTES, MOST_UNUSED = 50e6, 0.01
"""Least traffic of Ethernet, bytes/s, and most of InfiniBand's to it, for a job's collectives to be on the wrong one:
logs, data and checkpoints are less, or last no whole run."""
_GIB = float(1 << 30)
_LEAST_MS = 1e-9


@dataclass(frozen=True)
class CountedSteps:
    """The steps of a job in time, and the counters of its ranks.

    Attributes:
        ranks_of: ranks that traces name for a cause.
        reasons_of: reasons that traces give for a cause.
        num_hosts: on which the ranks run; 0 where unknown.
        num_workers: of the loader that trains; None where unknown.
        num_cpus: that a rank may use; None where unknown.
    """

    training: TrainingTime
    records: Sequence[RankSteps]
    signals: Mapping[int, RankSignals]
    ranks_of: Mapping[Cause, Sequence[int]]
    reasons_of: Mapping[Cause, Sequence[Reason]] = field(default_factory=dict)
    num_hosts: int = 0
    num_workers: int | None = None
    num_cpus: int | None = None
    _times: dict[int, tuple[Times, Times, Times]] = field(default_factory=dict, init=False)

    def refined(self, losses: JobLosses) -> JobLosses:
        """The losses with the reasons that counters give."""
        refined = [
            self._refined(loss) if losses.share(loss.most_gain_ms) >= MIN_LOSS_SHARE else loss for loss in losses.losses
        ]
        if all(new is old for new, old in zip(refined, losses.losses, strict=True)):
            return losses
        refined = sorted(merged_losses(refined), key=lambda loss: -loss.most_gain_ms)
        return losses._replace(losses=refined)

    def coverage(self) -> str:
        """Clause: of how many ranks there are counters, and what is missing."""
        with_gpu = sum(one.has_gpu for one in self.signals.values())
        with_host = sum(one.has_host for one in self.signals.values())
        total = counted(len(self.records), "rank")
        return f"GPU of {with_gpu}, host of {with_host} of {total}"

    def throttled(self) -> list[Notice]:
        """Notices of GPUs that were throttled in most steps: what that costs is not known, as no step shows it."""
        notices = []
        for rank, signals in self.signals.items():
            begins, ends, _ = self.step_times(rank)
            highest = signals.newest_of_gpu("sm_clock_max_hertz")
            clock = _mean_in(signals.gpu("sm_clock_hertz"), begins, ends)
            if not highest or clock is None:
                continue
            for reason, names in THROTTLE_KINDS:
                share = _mean_in(signals.throttled(names), begins, ends)
                most = MOST_CLOCK if reason in FAULTS else FleetThresholds().clock_low
                if share is not None and share >= MOSTLY_THROTTLED and clock <= most * highest:
                    text = f"rank {rank}: its GPU runs at {clock / highest:.0%} of its highest clock"
                    why = f"{reason_words(reason)} in {share:.0%} of the time"
                    notices.append(Notice("gpu_throttled", f"{text} ({why})"))
                    break
        return notices

    def _refined(self, loss: Loss) -> Loss:
        if loss.cause is Cause.STRAGGLER:
            return _with(loss, self._slower_clock(loss))
        if loss.cause is Cause.UNEXPLAINED:
            return self._explained(loss)
        if loss.cause is Cause.CONTENTION and Reason.GPU_SHARED in loss.reasons:
            sharing = self._sharing(loss, must_differ=False)
            return _with(loss if sharing is None else replace(loss, is_inferred=False), sharing)
        if loss.cause is Cause.DEVICE_GAP and Reason.NOT_STARTED in self.reasons_of.get(loss.cause, ()):
            sharing = self._sharing(loss, must_differ=False)
            return loss if sharing is None else replace(_with(loss, sharing), cause=Cause.CONTENTION)
        if loss.cause in (Cause.CONTENTION, Cause.HOST_BOUND):
            if loss.recorded in (HostLoss.COLLECTION, HostLoss.COMPILATION):
                return loss
            return _with(loss, self._lacking_cpu(loss))
        if loss.cause is Cause.DATA_LOADING:
            return _with(_with(loss, self._waiting_for_storage(loss)), self._lacking_cpu(loss))
        if loss.cause is Cause.CHECKPOINT:
            return _with(loss, self._waiting_for_storage(loss))
        if loss.cause is Cause.COMMUNICATION:
            return _with(loss, self._on_network(loss))
        return loss

    def _explained(self, loss: Loss) -> Loss:
        """An unexplained loss with the cause that counters show: another process, or a low clock."""
        if (found := self._sharing(loss, must_differ=True)) is not None:
            return replace(_with(loss, found), cause=Cause.CONTENTION, reasons=found.reasons)
        if (found := self._lower_clock(loss)) is not None:
            return replace(_with(loss, found), cause=Cause.THROTTLED, reasons=found.reasons)
        return loss

    def _sharing(self, loss: Loss, *, must_differ: bool) -> CountedReasons | None:
        """Another process on the GPU. How much it takes is not known, so its presence has to come and go with a loss
        that nothing else shows to be its doing."""
        for signals in self._signals_of(loss):
            found = self._overlap(loss, signals.rank, signals.shared)
            if found is None or not found.is_reason or (must_differ and found.elsewhere is None):
                continue
            named, num, memory = signals.sharers()
            ranks = [signals.rank]
            evidence = [Evidence("gpu_shared_ratio", found.during, "ratio", ranks=ranks)]
            for one in named[:3]:
                who = f"process {one.pid} of user {one.uid}"
                size = (memory or 0.0) if one.memory_bytes is None else one.memory_bytes
                evidence.append(Evidence(f"other_process_memory: {who}", size / _GIB, "GiB", ranks=ranks))
            if not named and memory:
                evidence.append(Evidence("other_memory", memory / _GIB, "GiB", ranks=ranks))
            if num > len(named):
                evidence.append(Evidence("other_processes", float(num), "other processes", ranks=ranks))
            return CountedReasons([Reason.GPU_SHARED], evidence)
        return None

    def _slower_clock(self, loss: Loss) -> CountedReasons | None:
        """A clock that is lower than that of the other ranks by as much as the rank is slower."""
        late = list(loss.ranks or self.ranks_of.get(loss.cause, ()))
        for rank in late:
            own = self.signals.get(rank)
            if own is None or not own.has_gpu:
                continue
            clock = own.gpu("sm_clock_hertz")
            edges = self._periods(clock, rank)
            peers = [one.gpu("sm_clock_hertz") for other, one in self.signals.items() if other not in late]
            known = [mean for peer in peers if not np.isnan(mean := peer.mean(edges)).all()]
            if not known:
                continue
            with np.errstate(invalid="ignore"):
                shortfall = 1.0 - clock.mean(edges) / np.nanmedian(np.stack(known), axis=0)
            if (found := self._clock_reason(loss, own, edges, shortfall)) is not None:
                return found
        return None

    def _lower_clock(self, loss: Loss) -> CountedReasons | None:
        """A clock that is lower in slow steps than in the others, by as much as they are slower."""
        for signals in self._signals_of(loss):
            clock = signals.gpu("sm_clock_hertz")
            edges = self._periods(clock, signals.rank)
            means = clock.mean(edges)
            if np.isnan(means).all():
                continue
            usual = float(np.nanquantile(means, _CLOCK_QUANTILE))
            shortfall = 1.0 - means / usual if usual > 0 else means
            if (found := self._clock_reason(loss, signals, edges, shortfall)) is not None:
                return found
        return None

    def _clock_reason(self, loss: Loss, signals: RankSignals, edges: Times, shortfall: Floats) -> CountedReasons | None:
        lost, seconds = self._lost(loss, signals.rank, edges)
        found = overlap(lost, seconds, shortfall)
        if found is None or not found.is_reason:
            return None
        ranks = [signals.rank]
        evidence = [Evidence("sm_clock_lower_by", found.during, "ratio", ranks=ranks)]
        for reason, names in THROTTLE_KINDS:
            held = self._overlap(loss, signals.rank, signals.throttled(names))
            if held is not None and held.during >= MOSTLY_THROTTLED:
                share = Evidence(f"throttled_time: {reason}", held.during, "ratio", MOSTLY_THROTTLED, ranks)
                return CountedReasons([reason], [*evidence, share])
        return CountedReasons([Reason.LOW_CLOCK], evidence)

    def _lacking_cpu(self, loss: Loss) -> CountedReasons | None:
        """A cgroup whose limit stops its threads, or whose threads wait for a CPU."""
        is_loader = loss.cause is Cause.DATA_LOADING
        for signals in self._signals_of(loss):
            ranks = [signals.rank]
            stopped = signals.rate("cgroup_cpu_throttled_seconds_total")
            found = None if stopped is None else self._overlap(loss, signals.rank, stopped)
            if found is not None and found.is_reason:
                evidence = [Evidence("cgroup_throttled_ratio", found.during, "ratio", ranks=ranks)]
                limit = signals.newest_of_host("cgroup_cpu_limit_cpus")
                evidence += [] if limit is None else [Evidence("cgroup_cpu_limit", limit, "CPUs", ranks=ranks)]
                return CountedReasons([Reason.CPU_LIMITED], evidence)
            if not is_loader and loss.recorded is not HostLoss.RUN_DELAY:
                continue  # that the threads that launch have a CPU is recorded
            evidence = [Evidence("usable_cpus", float(self.num_cpus), "")] if self.num_cpus else []
            waiting = signals.rate("cgroup_pressure_cpu_some_seconds_total")
            found = None if waiting is None else self._overlap(loss, signals.rank, waiting, is_loader=is_loader)
            if found is not None and found.is_reason:
                pressure = Evidence("cpu_pressure_ratio", found.during, "ratio", ranks=ranks)
                return CountedReasons([Reason.CPU_LIMITED], [pressure, *evidence])
            waiting = None if is_loader else signals.rate("pressure_cpu_some_seconds_total")
            found = None if waiting is None else self._overlap(loss, signals.rank, waiting)
            if found is not None and found.is_reason:  # of all processes there: that these lack a CPU is recorded
                pressure = Evidence("machine_cpu_pressure_ratio", found.during, "ratio", ranks=ranks)
                return CountedReasons([Reason.CPU_LIMITED], [pressure, *evidence])
        return None

    def _waiting_for_storage(self, loss: Loss) -> CountedReasons | None:
        is_loader = loss.cause is Cause.DATA_LOADING
        for signals in self._signals_of(loss):
            pressure = signals.rate("cgroup_pressure_io_some_seconds_total", "pressure_io_some_seconds_total")
            signal = pressure or signals.rate("cpu_iowait_seconds_total")
            found = None if signal is None else self._overlap(loss, signals.rank, signal, is_loader=is_loader)
            if found is None or not found.is_reason:
                continue
            ranks = [signals.rank]
            if pressure is not None:
                return CountedReasons(
                    [Reason.SLOW_STORAGE], [Evidence("io_pressure_ratio", found.during, "ratio", ranks=ranks)]
                )
            return CountedReasons(
                [Reason.SLOW_STORAGE], [Evidence("io_wait_ratio", found.during, "ratio", ranks=ranks)]
            )
        return None

    def _on_network(self, loss: Loss) -> CountedReasons | None:
        """Traffic between hosts that takes Ethernet though they have InfiniBand, and errors of ports on a slow link."""
        for signals in self._signals_of(loss):
            begins, ends, _ = self.step_times(signals.rank)
            rates = {
                name: None if (signal := signals.rate(name)) is None else _mean_in(signal, begins, ends)
                for name in ("network_transmit_bytes_total", "infiniband_transmit_bytes_total",
                             "network_errors_total", "infiniband_errors_total")
            }  # fmt: skip
            ethernet, infiniband, *errors = rates.values()
            ranks = [signals.rank]
            if self.num_hosts > 1 and _is_unused(infiniband, beside=ethernet):
                evidence = [
                    Evidence("ethernet_rate", (ethernet or 0.0) / 1e9, "GB/s", ranks=ranks),
                    Evidence("infiniband_rate", (infiniband or 0.0) / 1e9, "GB/s", ranks=ranks),
                ]
                return CountedReasons([Reason.WRONG_TRANSPORT], evidence)
            num = sum(filter(None, errors))
            slow = [r for r in (Reason.SLOW_LINK, Reason.WRONG_TRANSPORT) if r in self.reasons_of.get(loss.cause, ())]
            if slow and num > 0:
                return CountedReasons(slow, [Evidence("nic_errors_per_second", num, "", ranks=ranks)])
        return None

    def _signals_of(self, loss: Loss) -> list[RankSignals]:
        """Signals of the ranks that a loss is due to, of some of all where none is named."""
        named = list(loss.ranks or self.ranks_of.get(loss.cause, ()) or self.signals)
        known = [self.signals[rank] for rank in named if rank in self.signals]
        return known[:: -(-len(known) // MAX_RANKS) or 1]

    def _overlap(self, loss: Loss, rank: int, evidence: Signal, *, is_loader: bool = False) -> Overlap | None:
        """How a signal coincides with a loss. Where any of a loader's workers counts, the part of one of them."""
        edges = self._periods(evidence, rank)
        share = np.clip(evidence.mean(edges), 0.0, 1.0)
        if is_loader:
            num_workers = DEFAULT_NUM_WORKERS if self.num_workers is None else self.num_workers
            share = 1.0 - (1.0 - share) ** (1.0 / max(num_workers, 1))
        return overlap(*self._lost(loss, rank, edges), share)

    def _periods(self, signal: Signal, rank: int) -> Times:
        begins, ends, _ = self.step_times(rank)
        if not len(begins):
            return np.zeros(0, np.int64)
        usual = float(np.median(ends - begins))
        return periods(int(begins.min()), int(ends.max()), usual, signal.usual_ns)

    def _lost(self, loss: Loss, rank: int, edges: Times) -> tuple[Floats, Floats]:
        """Seconds of a loss and of settled steps in each period, by the clock of a rank's own machine."""
        begins, ends, rows = self.step_times(rank)
        by_step = _loss_by_step(self.training, loss) / np.maximum(self.training.steps.period_ms, _LEAST_MS)
        share = np.clip(by_step[rows], 0.0, 1.0)
        lost, seconds = Signal.of_intervals(begins, ends, share).over(edges)
        return lost, seconds

    def step_times(self, rank: int) -> tuple[Times, Times, Times]:
        """Begin, end and row of each settled step of a rank."""
        if rank not in self._times:
            steps, weight = self.training.steps, self.training.weight
            keys = zip(steps.attempt.tolist(), steps.index.tolist(), strict=True)
            row_of = {key: row for row, key in enumerate(keys) if weight[row] > 0}
            own = next((one.steps for one in self.records if one.rank == rank), [])
            known = [(s.start_ns, s.end_ns, row) for s in own if (row := row_of.get((s.attempt, s.index))) is not None]
            columns = np.array(known, np.int64).reshape(-1, 3)
            self._times[rank] = columns[:, 0], columns[:, 1], columns[:, 2]
        return self._times[rank]


def _is_unused(infiniband: float | None, *, beside: float | None) -> bool:
    """Whether the ports of InfiniBand carry next to nothing beside what Ethernet does, bytes/s."""
    if infiniband is None or beside is None:
        return False
    return beside >= MIN_NETWORK_BYTES and infiniband <= MOST_UNUSED * beside


def _mean_in(signal: Signal, begins: Times, ends: Times) -> float | None:
    """Mean of a signal over the steps; None where it is unknown in most of their time."""
    known = Signal(signal.corners_ns, signal.known, signal.known, signal.usual_ns)
    seconds = float(known.between(begins, ends).sum())
    if seconds <= 0 or seconds < MOSTLY_COVERED * float((ends - begins).sum()) * 1e-9:
        return None
    return float(signal.between(begins, ends).sum()) / seconds


def _with(loss: Loss, found: CountedReasons | None) -> Loss:
    if found is None:
        return loss
    before = loss.counted or CountedReasons([], [])
    return replace(
        loss,
        counted=CountedReasons(
            list(dict.fromkeys([*found.reasons, *before.reasons])), [*found.evidence, *before.evidence]
        ),
    )


def _loss_by_step(training: TrainingTime, loss: Loss) -> Floats:
    """What each step lost, ms; the same of all where only the mean is known."""
    shape = _shape(training, loss)
    mean = 0.0 if shape is None else training.mean_ms(shape)
    if shape is None or mean <= 0:
        return np.full(len(training.steps), loss.most_gain_ms)
    return shape * (loss.most_gain_ms / mean)


def _shape(training: TrainingTime, loss: Loss) -> Floats | None:
    losses, slow = training.losses, training.slow
    if loss.recorded is not None:
        return losses.ms[loss.recorded]
    if loss.cause is not Cause.UNEXPLAINED:
        return None
    longer = np.maximum(losses.rest_ms - slow.ordinary_ms, 0.0)
    if loss.basis != TELEMETRY:
        return np.where(slow.is_slow, 0.0, longer)
    if Reason.STEPS_GET_LONGER in loss.reasons and training.trend is not None:
        return np.maximum(losses.rest_ms - training.trend.first_ms, 0.0)
    return np.where(slow.is_slow, longer, 0.0)
