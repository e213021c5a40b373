"""Links between GPUs: expected time of a collective, and from which size on bandwidth counts.

Data sheets give the rate of the wires. The share of it that a collective can reach, and the latency before the first
byte, are NCCL's own model, with which it selects its algorithm and protocol (src/graph/topo.h, tuning.cc). Without such
a model, 10 us of latency look like a slow link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.hardware.gpu_catalogue import GpuModel


class LinkKind(StrEnum):
    """Kind of a hardware link between GPUs."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE = "pcie"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Link:
    """The hardware link from one GPU to the others of its group.

    Attributes:
        bytes_per_second: the best rate of a collective in one direction.
        source: of the rate.
        num_hosts: hosts that a network connects; None where unknown: then every step of a ring may cross the network.
    """

    kind: LinkKind
    bytes_per_second: float
    source: str
    num_hosts: int | None = None


@dataclass(frozen=True, slots=True)
class _Protocol:
    """One of NCCL's ring protocols: latency before the first byte and share of the bandwidth."""

    base_us: float
    nvlink_step_us: float
    pcie_step_us: float
    network_step_us: float
    share: float


SLOW_BELOW = 1 / 3
"""Share of the expected bandwidth below which a link is slow. Concurrently with compute, collectives reach 0.5 to 0.9
of it (recorded FSDP, DDP and TP steps on NVLink); over host memory 0.07."""

NVLINK_SHARE = 0.8
"""NCCL assumes 20.0 of 25 GB/s of an NVLink 2 to 4 lane and 40.1 of 50 of NVLink 5 (src/graph/topo.h)."""

XGMI_SHARE = 0.75
"""48 of 64 GB/s per link (ROCm blog "Understanding RCCL Bandwidth and xGMI Performance", 2025-03)."""
_XGMI_PEERS = 7
"""Each of eight GPUs has one link to each other one, so a smaller group uses fewer of its links."""

PCIE_BYTES_PER_SECOND = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
"""x16, one direction (PCI-SIG: 8, 16, 32 GT/s, 128b/130b)."""
PCIE_SHARE = 0.76
"""NCCL assumes 12 of 15.75 GB/s (src/graph/topo.h)."""
_PCIE_GENERATION = (("V100", 3), ("T4", 3), ("A100", 4), ("A10", 4), ("L4", 4), ("MI2", 4))
_NEWEST_PCIE = 5

_PROTOCOLS = (
    _Protocol(3.6, 0.47, 1.0, 2.7, 0.25),  # LL
    _Protocol(10.0, 1.9, 2.5, 4.0, 0.92),  # LL128
    _Protocol(8.4, 3.4, 5.7, 14.0, 1.0),  # Simple
)
"""Ring latencies in microseconds and shares of the bus bandwidth (NCCL src/graph/tuning.cc)."""

_BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Times (n - 1) / n: bytes on each GPU's link for each byte of the result (nccl-tests, doc/PERFORMANCE.md)."""


def bus_factor(kind: str, num_ranks: int) -> float:
    """Bytes on a GPU's link per byte of a collective: busbw / algbw, by nccl-tests' definitions; 1 for other kinds."""
    return _BUS_FACTOR[kind] * (num_ranks - 1) / num_ranks if kind in _BUS_FACTOR else 1.0


def pcie_link(device_name: str) -> Link:
    """The hardware link over the GPU's PCI Express slot, also an upper bound of transfers over host memory."""
    generation = next((number for name, number in _PCIE_GENERATION if name in device_name), _NEWEST_PCIE)
    rate = PCIE_BYTES_PER_SECOND[generation] * PCIE_SHARE
    return Link(LinkKind.PCIE, rate, f"PCIe {generation}.0 x16, {PCIE_SHARE:.0%} of it")


def scale_up_link(gpu: GpuModel, device_name: str, num_ranks: int) -> Link:
    """The fastest hardware link between the GPUs of one host.

    Args:
        gpu: the model.
        device_name: the driver's name, which identifies PCIe cards.
        num_ranks: size of the group; in a mesh of links a smaller group uses fewer of them.
    """
    if gpu.link_bytes_per_second is None or "pcie" in device_name.lower():
        return pcie_link(device_name)
    if gpu.name.startswith("MI"):
        reachable = min((num_ranks - 1) / _XGMI_PEERS, 1.0)
        rate = gpu.link_bytes_per_second * XGMI_SHARE * reachable
        return Link(LinkKind.XGMI, rate, f"{gpu.source}, {XGMI_SHARE:.0%} of it")
    return Link(LinkKind.NVLINK, gpu.link_bytes_per_second * NVLINK_SHARE, f"{gpu.source}, {NVLINK_SHARE:.0%} of it")


def network_link(bytes_per_second: float) -> Link:
    """The hardware link of a GPU to other hosts, with its share of the network cards."""
    return Link(LinkKind.NETWORK, bytes_per_second, "as given")


def scale_out_link(network_bytes_per_second: float, kind: str, members: Sequence[int], within: Link | None) -> Link:
    """The network link of a group on several hosts, as nccl-tests' bus bandwidth.

    NCCL builds as many rings as a host's members have cards, each through all members, so a collective can use all
    cards of the host with the fewest members. A message uses its sender's card. Of an all-to-all only the part for
    other hosts crosses the network.

    Args:
        network_bytes_per_second: of each GPU's card, in one direction.
        kind: of the collective.
        members: the number of the group's GPUs on each host.
        within: the link within a host, an upper bound for all collectives; None where each host has one GPU.
    """
    num_ranks, fewest = sum(members), min(members)
    cards = {"p2p": 1.0, "all_to_all": (num_ranks - 1) / (num_ranks - fewest)}.get(kind, float(fewest))
    rate = network_bytes_per_second * cards
    if within is not None:
        rate = min(rate, within.bytes_per_second)
    return Link(LinkKind.NETWORK, rate, "as given", len(members))


def expected_seconds(link: Link, kind: str, num_ranks: int, num_bytes: int) -> float:
    """Shortest duration of a transfer over a hardware link, by NCCL's model of its ring protocols."""
    moved = num_bytes * bus_factor(kind, num_ranks) / link.bytes_per_second
    return min(_latency_seconds(protocol, link, kind, num_ranks) + moved / protocol.share for protocol in _PROTOCOLS)


def is_latency_bound(link: Link, kind: str, num_ranks: int, num_bytes: int) -> bool:
    """Whether latency is more than half of a transfer's shortest duration over a hardware link."""
    moved = num_bytes * bus_factor(kind, num_ranks) / link.bytes_per_second
    return moved < expected_seconds(link, kind, num_ranks, num_bytes) / 2


def _latency_seconds(protocol: _Protocol, link: Link, kind: str, num_ranks: int) -> float:
    steps = _ring_steps(kind, num_ranks)
    if link.kind is LinkKind.PCIE:
        return (protocol.base_us + steps * protocol.pcie_step_us) / 1e6
    between = 0 if link.kind is not LinkKind.NETWORK else steps
    if link.num_hosts is not None:
        between = min(_ring_steps(kind, link.num_hosts), steps)
    return (protocol.base_us + between * protocol.network_step_us + (steps - between) * protocol.nvlink_step_us) / 1e6


def _ring_steps(kind: str, num_members: int) -> int:
    return {"all_reduce": 2 * (num_members - 1), "p2p": 1, "all_to_all": 1}.get(kind, num_members - 1)
