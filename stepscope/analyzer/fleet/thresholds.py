"""Thresholds of the fleet classes and their sources.

"Recorded" means 2 H100s (SXM, 700 W) in real training at 5 samples a second; the figures are in
docs/explanation/fleet-class.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds; ratios are of time or of a peak, 0..1."""

    min_loss: float = 0.25
    """Threshold of a loss. Traces use 0.1; the estimates here are off by up to 0.1."""
    compute_density: float = 0.85
    """SM over engine activity of large kernels; recorded: 0.82 to 0.94."""
    waiting_density: float = 0.12
    """The same for a waiting communication kernel; recorded: 1, 16 and 24 of 132 SMs."""
    compute_tensor: float = 0.45
    """Tensor activity while bfloat16 training computes; recorded: 0.46 to 0.50, large products alone 0.67."""
    compute_dram: float = 0.72
    """Memory activity while memory-bound kernels run; recorded: 0.72 to 0.74. Some 0.8 is the practical peak."""
    compute_power: float = 0.95
    """Share of the range from idle power to the limit while computing; recorded, without the driver's averaging: 0.78
    (large products alone, memory-bound) to 1.1 (clocks not capped yet)."""
    waiting_power: float = 0.05
    """The same while communication kernels poll; recorded: 0 to 0.09, depending on their SMs."""
    power_seconds: float = 5.0
    """Shortest window with power of its own: the driver reports the mean of the last second."""
    idle_power: float = 0.175
    """Share of the limit with clocks up and nothing to do; recorded: 121 to 124 of 700 W."""
    high_power: float = 0.3
    """Share of the limit that neither an idle GPU nor polling kernels draw; recorded: at most 0.25."""
    idle_busy: float = 0.03
    """Share of time with kernels below which a GPU is idle; a job that launches tiny kernels one by one has 0.04 on an
    H100, 0.02 to 0.035 on an H200."""
    tiny_busy: float = 0.01
    """Share of time with kernels in every sample from which a GPU that a process holds is not idle."""
    memory_dram: float = 0.5
    """Memory activity while computing from which memory may be the limit; recorded: 0.42 (not), 0.77 (is)."""
    tensor_roof: float = 0.75
    """Tensor activity of training that large products bound; recorded 0.67 on H100s, 0.76 on H200s (alone: 0.94)."""
    dram_roof: float = 0.85
    """Memory activity of a copy; data sheets promise 1, measured peaks are 0.8 to 0.9."""
    memory_busy: float = 0.65
    """nvidia-smi's memory figure over its utilisation; recorded: 0.34 to 0.54 (computing), 0.95 and, on an H200, 0.73
    (memory-bound)."""
    small_kernels: float = 0.4
    """SM over engine activity below which kernels do not fill the GPU; recorded: 0.04 to 0.15 (launch-bound)."""
    copy_bytes: float = 200e6
    """Bytes/s over PCIe from which the host link works: pageable copies make 1 GB/s, a batch of tokens some kB."""
    peer_bytes: float = 30e6
    """Bytes/s over PCIe in each direction of a GPU whose peers lie beyond it: launches alone make 60 to 80 MB/s to the
    GPU, and under 15 MB/s back."""
    link_traffic: float = 1e6
    """Bytes/s over NVLink or network of a GPU that communicates at all; recorded between stages: 340 MB/s."""
    clock_low: float = 0.7
    """SM clock of its highest below which a busy GPU is slowed; recorded under a power cap: 0.87 to 1."""
    throttle_share: float = 0.2
    """Of samples with a hardware or thermal reason."""
    hang_seconds: float = 50.0
    """Polling this long without traffic is rarely a wait for a slow peer; NCCL's own watchdog waits 600 s."""
    hang_spread: float = 0.05
    """Range of power, as a share of the limit, below which it is constant."""
    hang_bytes: float = 60e6
    """Bytes/s over PCIe in each direction, or over the network's ports, of a GPU that does not hang: NCCL's proxy of a
    hung all-reduce polls at 27 MB/s (recorded, H200, TCP), a slow network of 1 Gbit/s moves 100."""
    spin_activity: float = 0.005
    """Tensor and memory activity of a kernel that only polls: recorded 0.000 to 0.001."""


LIMITS = Limits()
