"""What is known of a GPU at one moment, of its kind, and of the processes that use it? None is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a GPU or MIG instance; ratios are 0..1, rates averages since the sample before.

    Attributes:
        time_ns: when, ns since the epoch.
        utilization: share of time in which any kernel ran, as nvidia-smi shows it.
        memory_busy: share of time in which memory was read or written, as nvidia-smi shows it.
        power_watts, clock_hertz: of the board, of the SMs.
        throttle_reasons: in the words of `core.gpu_metrics.THROTTLE_REASONS`; None where they are not told.
        engine, sm, tensor, dram, vector: profiling counters; `vector` is the busiest of the other pipes.
        link_bytes: over NVLink, bytes/s, the busier direction.
        pcie_transmit, pcie_receive: from and to the GPU, bytes/s.
        memory_used: bytes.
        num_processes: that hold the GPU.
    """

    time_ns: int
    utilization: float | None = None
    memory_busy: float | None = None
    power_watts: float | None = None
    clock_hertz: float | None = None
    throttle_reasons: frozenset[str] | None = None
    engine: float | None = None
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    vector: float | None = None
    link_bytes: float | None = None
    pcie_transmit: float | None = None
    pcie_receive: float | None = None
    memory_used: float | None = None
    num_processes: float | None = None

    @property
    def busy(self) -> float | None:
        """Share of time in which any kernel ran: by the engine's counter where there is one."""
        return self.utilization if self.engine is None else self.engine


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What of a GPU stays the same.

    Attributes:
        name: as the driver calls it.
        power_limit_watts: that it may draw: the enforced limit, or the data sheet's.
        clock_max_hertz: highest clock of the SMs.
        memory_total: bytes.
        idle_watts: drawn with clocks up and nothing to do, where that was seen.
        has_links: whether it has NVLinks; None where that is not known.
    """

    name: str = ""
    power_limit_watts: float | None = None
    clock_max_hertz: float | None = None
    memory_total: float | None = None
    idle_watts: float | None = None
    has_links: bool | None = None


@dataclass(frozen=True, slots=True)
class HostUse:
    """What the processes on a GPU did beside it, on average of the window.

    Attributes:
        cpus: CPUs that they kept busy, all threads, divided by the number of processes.
        stopped_cpus: CPUs' worth of time in which their cgroup was stopped at its limit.
        io_wait: share of time in which some thread of their cgroup (or of the machine) waited for a disk.
        network_bytes: of the machine's InfiniBand ports, bytes/s, the busier direction.
        data_wait: share of the training steps that waited for data, where training itself tells.
    """

    cpus: float | None = None
    stopped_cpus: float | None = None
    io_wait: float | None = None
    network_bytes: float | None = None
    data_wait: float | None = None
