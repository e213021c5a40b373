"""GPU models and their links: peak rates from the vendors' data sheets, and the expected time of a collective.

To add a model, add a row.

The most specific name comes first. All rates are dense: half of what a sheet gives with structured sparsity. FP16 and
BF16 are with FP32 accumulation, as in torch (GeForce cards are twice as fast with FP16 accumulation, which torch never
uses). FP64 is that of the matrix units where there are any. A link's bandwidth is that of one direction, half of what
most sheets print.

The share of a link's rate that a collective can reach, and the latency before the first byte, are NCCL's own model,
with which it selects its algorithm and protocol (src/graph/topo.h, tuning.cc). Without such a model, 10 us of latency
look like a slow link.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

_AS_FLOAT32 = ("tfloat32", "bfloat16")
"""Types that run as float32 on the vector units where the matrix units lack them (before Ampere)."""


class GpuModel(NamedTuple):
    """Data sheet of one GPU model: peak rates and sizes.

    Attributes:
        name: the part of the driver's device name that identifies it.
        dense_flops: peak FLOP/s by dtype without sparsity.
        memory_bytes_per_second: HBM bandwidth.
        memory_gib: memory of the largest variant (of one die where a card has two). No more can be allocated; ECC,
            firmware and driver take some of it.
        num_sms: streaming multiprocessors (compute units on AMD).
        link_bytes_per_second: scale-up link bandwidth in one direction, all links together; None without or unknown.
        source: where the figures are from.
    """

    name: str
    dense_flops: MappingProxyType[str, float]
    memory_bytes_per_second: float
    memory_gib: float
    num_sms: int
    link_bytes_per_second: float | None
    source: str

    def peak_flops(self, dtype: str) -> float | None:
        """Dense peak in FLOP/s for an element type of matrix operands, or None when the catalogue has none."""
        peak = self.dense_flops.get(dtype)
        if peak is None and dtype in _AS_FLOAT32:
            return self.dense_flops.get("float32")
        return peak


# fmt: off
def _gpu(
    name: str, fp16: float, bf16: float, tf32: float, fp32: float, fp64: float, fp8: float,
    memory_gbs: float, memory_gib: float, num_sms: int, link_gbs: float, source: str,
) -> GpuModel:
    """One row of the catalogue. 0: the GPU has none, or the sheet does not say.

    Args:
        name: words of the driver's device name that identify it.
        fp16, bf16, tf32, fp32, fp64, fp8: TFLOP/s of matrix products.
        memory_gbs, link_gbs: GB/s.
    """
    tera = {"float16": fp16, "bfloat16": bf16, "tfloat32": tf32, "float32": fp32, "float64": fp64, "float8": fp8}
    dense_flops = MappingProxyType({dtype: value * 1e12 for dtype, value in tera.items() if value})
    return GpuModel(name, dense_flops, memory_gbs * 1e9, memory_gib, num_sms, link_gbs * 1e9 or None, source)


GPU_MODELS: tuple[GpuModel, ...] = (
    # name, fp16, bf16, tf32, fp32, fp64, fp8 (TFLOP/s), memory (GB/s, GiB), SMs, link (GB/s), source
    _gpu("GB300", 2500, 2500, 1250, 80, 1.3, 5000, 8000, 288, 152, 900, "NVIDIA GB300 NVL72 data sheet, a 72nd"),
    _gpu("GB200", 2500, 2500, 1250, 80, 40, 5000, 8000, 192, 152, 900, "NVIDIA GB200 NVL72 data sheet, a 72nd"),
    _gpu("B300", 2250, 2250, 1125, 75, 1.25, 4500, 8000, 288, 148, 900, "NVIDIA HGX B300 data sheet, an 8th"),
    _gpu("B200", 2250, 2250, 1125, 75, 37, 4500, 8000, 192, 148, 900, "NVIDIA HGX and DGX B200 data sheets, an 8th"),
    _gpu("GH200", 989.4, 989.4, 494.7, 66.9, 66.9, 1978.9, 4000, 96, 132, 450, "NVIDIA GH200 data sheet, 96 GB HBM3"),
    _gpu("H200 NVL", 835.5, 835.5, 417.5, 60, 60, 1670.5, 4800, 141, 132, 450, "NVIDIA H200 data sheet, NVL"),
    _gpu("H200", 989.4, 989.4, 494.7, 66.9, 66.9, 1978.9, 4800, 141, 132, 450, "NVIDIA H200 data sheet, SXM"),
    _gpu("H100 NVL", 835.5, 835.5, 417.5, 60, 60, 1670.5, 3900, 94, 132, 300, "NVIDIA H100 data sheet, NVL"),
    _gpu("H100 PCIe", 756.5, 756.5, 378, 51.2, 51.2, 1513, 2000, 80, 114, 300, "NVIDIA H100 data sheet, PCIe"),
    _gpu("H100", 989.4, 989.4, 494.7, 66.9, 66.9, 1978.9, 3350, 80, 132, 450, "NVIDIA H100 data sheet, SXM"),
    _gpu("H800 PCIe", 756.5, 756.5, 378, 51.2, 0, 1513, 2000, 80, 114, 200, "NVIDIA H800 data sheet, PCIe, no FP64"),
    _gpu("H800", 989.4, 989.4, 494.7, 66.9, 1, 1978.9, 3350, 80, 132, 200, "NVIDIA H800 data sheet, SXM"),
    _gpu("H20", 148, 148, 74, 44, 1, 296, 4000, 96, 78, 450, "NVIDIA H20 data sheet"),
    _gpu("A100-SXM4-80GB", 312, 312, 156, 19.5, 19.5, 0, 2039, 80, 108, 300, "NVIDIA A100 data sheet, 80 GB SXM"),
    _gpu("A100 80GB PCIe", 312, 312, 156, 19.5, 19.5, 0, 1935, 80, 108, 300, "NVIDIA A100 data sheet, 80 GB PCIe"),
    _gpu("A100", 312, 312, 156, 19.5, 19.5, 0, 1555, 40, 108, 300, "NVIDIA A100 data sheet, 40 GB"),
    _gpu("A800-SXM4-80GB", 312, 312, 156, 19.5, 19.5, 0, 2039, 80, 108, 200, "NVIDIA A800 data sheet, 80 GB SXM"),
    _gpu("A800 80GB PCIe", 312, 312, 156, 19.5, 19.5, 0, 1935, 80, 108, 200, "NVIDIA A800 data sheet, 80 GB PCIe"),
    _gpu("A40", 149.7, 149.7, 74.8, 37.4, 0, 0, 696, 48, 84, 56.25, "NVIDIA A40 data sheet"),
    _gpu("A30", 165, 165, 82, 10.3, 10.3, 0, 933, 24, 56, 100, "NVIDIA A30 data sheet"),
    _gpu("A10G", 70, 70, 35, 35, 0, 0, 600, 24, 80, 0, "NVIDIA and AWS A10G data sheet, 2022"),
    _gpu("A10", 125, 125, 62.5, 31.2, 0, 0, 600, 24, 72, 0, "NVIDIA A10 data sheet"),
    _gpu("L40S", 362.05, 362.05, 183, 91.6, 0, 733, 864, 48, 142, 0, "NVIDIA L40S data sheet"),
    _gpu("L40", 181.05, 181.05, 90.5, 90.5, 0, 362, 864, 48, 142, 0, "NVIDIA L40 data sheet"),
    _gpu("L20", 119.5, 119.5, 59.8, 59.8, 0, 239, 864, 48, 92, 0, "NVIDIA L20 data sheet"),
    _gpu("L4", 121, 121, 60, 30.3, 0, 242.5, 300, 24, 58, 0, "NVIDIA L4 data sheet"),
    _gpu("T4", 65, 0, 0, 8.1, 0, 0, 320, 16, 40, 0, "NVIDIA T4 data sheet, Turing white paper"),
    _gpu("RTX 5090", 209.5, 209.5, 104.8, 104.8, 0, 419, 1792, 32, 170, 0, "NVIDIA RTX Blackwell white paper"),
    _gpu("RTX 4090", 165.2, 165.2, 82.6, 82.6, 0, 330.3, 1008, 24, 128, 0, "NVIDIA Ada white paper"),
    _gpu("RTX 3090", 71, 71, 35.6, 35.6, 0, 0, 936, 24, 82, 56.25, "NVIDIA Ampere GA102 white paper"),
    _gpu("RTX A6000", 154.8, 154.8, 77.4, 38.7, 0, 0, 768, 48, 84, 56.25, "NVIDIA RTX A6000 data sheet"),
    _gpu("RTX 6000 Ada", 364.2, 364.2, 182.1, 91.1, 0, 728.5, 960, 48, 142, 0, "NVIDIA RTX 6000 Ada data sheet"),
    _gpu("RTX 2080 Ti", 53.8, 0, 0, 13.4, 0, 0, 616, 11, 68, 50, "NVIDIA Turing white paper, reference clocks"),
    _gpu("V100S", 130, 0, 0, 16.4, 8.2, 0, 1134, 32, 80, 0, "NVIDIA V100 data sheet, V100S PCIe"),
    _gpu("V100-PCIE", 112, 0, 0, 14, 7, 0, 900, 32, 80, 0, "NVIDIA V100 data sheet, PCIe"),
    _gpu("V100-DGXS", 125, 0, 0, 15.7, 7.8, 0, 900, 32, 80, 100, "NVIDIA DGX Station data sheet, a 4th"),
    _gpu("V100", 125, 0, 0, 15.7, 7.8, 0, 900, 32, 80, 150, "NVIDIA V100 data sheet, SXM2"),
    _gpu("MI355X", 2516.6, 2516.6, 0, 157.3, 78.6, 5033.2, 8000, 288, 256, 537.6, "AMD Instinct MI355X data sheet"),
    _gpu("MI350X", 2306.9, 2306.9, 0, 144.2, 72.1, 4613.7, 8000, 288, 256, 537.6, "AMD Instinct MI350X data sheet"),
    _gpu("MI325X", 1307.4, 1307.4, 653.7, 163.4, 163.4, 2614.9, 6000, 256, 304, 448, "AMD Instinct MI325X data sheet"),
    _gpu("MI300X", 1307.4, 1307.4, 653.7, 163.4, 163.4, 2614.9, 5300, 192, 304, 448, "AMD Instinct MI300X data sheet"),
    _gpu("MI250X", 191.5, 191.5, 0, 47.9, 47.9, 0, 1638.4, 64, 110, 0, "AMD Instinct MI250X data sheet, one die"),
    _gpu("MI250", 181, 181, 0, 45.3, 45.3, 0, 1638.4, 64, 104, 0, "AMD Instinct MI250 data sheet, one die"),
    _gpu("MI210", 181, 181, 0, 45.3, 45.3, 0, 1638.4, 64, 104, 150, "AMD Instinct MI210 data sheet"),
    _gpu("MI100", 184.6, 92.3, 0, 46.1, 11.5, 0, 1228.8, 32, 120, 0, "AMD Instinct MI100 data sheet"),
)
"""Most specific name first."""
# fmt: on


@lru_cache(maxsize=256)
def find_gpu(device_name: str | None) -> GpuModel | None:
    """Data sheet of a GPU by the driver's device name, or None when it is not in the catalogue."""
    return next((model for model in GPU_MODELS if _is_card(model.name, device_name or "")), None)


OTHER_CARDS = ("laptop", "max-q", "mobile", "4090 d", "5090 d", "mig ")
"""Words in the names of slower cards with the name of a row, and of MIG slices of a card."""

BOARD_WATTS: tuple[tuple[str, float], ...] = (
    ("GB300", 1400), ("GB200", 1200), ("B300", 1400), ("B200", 1000), ("GH200", 900), ("H200 NVL", 600), ("H200", 700),
    ("H100 NVL", 400), ("H100 PCIe", 350), ("H100", 700), ("H800 PCIe", 350), ("H800", 700), ("H20", 400),
    ("A100-SXM4", 400), ("A100 80GB PCIe", 300), ("A100-PCIE", 250), ("A800-SXM4", 400), ("A800 80GB PCIe", 300),
    ("A40", 300), ("A30", 165), ("A10G", 300), ("A10", 150), ("L40S", 350), ("L40", 300), ("L20", 275), ("L4", 72),
    ("T4", 70), ("RTX 5090", 575), ("RTX 4090", 450), ("RTX 3090", 350), ("RTX A6000", 300), ("RTX 6000 Ada", 300),
    ("RTX 2080 Ti", 250), ("V100S", 250), ("V100-PCIE", 250), ("V100-DGXS", 300), ("V100", 300),
)  # fmt: skip
"""Power limit of the data sheet by words of the driver's device name, the most specific first. The limit that the
driver enforces may be lower; dcgm-exporter's default page does not have it."""


def board_power_watts(device_name: str) -> float | None:
    """Power limit in the data sheet of a GPU, or None when it is not in the table."""
    return next((watts for words, watts in BOARD_WATTS if _is_card(words, device_name)), None)


def _is_card(words: str, device_name: str) -> bool:
    """Whether the device is a full card whose name contains these words as a whole: an A100 is not an A10."""
    name = device_name.lower()
    if any(word in name for word in OTHER_CARDS):
        return False
    return re.search(rf"(?<![a-z0-9]){re.escape(words.lower())}(?![a-z0-9])", name) is not None


class Nvlink(StrEnum):
    """How a GPU model has NVLink."""

    NONE = "none"
    BRIDGE = "bridge"  # connectors for a bridge between two cards, which need not be there
    BUILT_IN = "built_in"


_NVLINK_BY_NAME: tuple[tuple[str, Nvlink], ...] = (
    (r"A2|A10G?|A16|L2|L4|L20|L40[SG]?|T4G?|P4|P40|P100-PCIE|V100-PCIE|V100S-PCIE|TITAN V", Nvlink.NONE),
    (r"GTX \d+|RTX [45]0\d0|RTX PRO \d+|RTX \d+ Ada|RTX A[24]000", Nvlink.NONE),
    (r"GB\d00|GH200|B[23]00|SXM\d?|V100-DGXS", Nvlink.BUILT_IN),
    (r"PCIE|NVL|A30|A40|RTX A(?:4500|5000|5500|6000)|RTX 3090|RTX 20[78]0|RTX [568]000|TITAN RTX", Nvlink.BRIDGE),
    (r"[AH][18]00|H20|H200|V100|P100", Nvlink.BUILT_IN),
)
"""By words of the driver's device name, from NVIDIA's data sheets; the first row that fits counts."""


@lru_cache(maxsize=256)
def nvlink_of(device_name: str) -> Nvlink | None:
    """How a device has NVLink by its model, or None when the model is not in the table."""
    for words, nvlink in _NVLINK_BY_NAME:
        if re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", device_name, re.IGNORECASE):
            return nvlink
    return None


class LinkKind(StrEnum):
    """Kind of a hardware link between GPUs."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE = "pcie"
    NETWORK = "network"


class Link(NamedTuple):
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


class _Protocol(NamedTuple):
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
    """GPU catalogue: shortest duration of a transfer over a hardware link, by NCCL's model of its ring protocols."""
    moved = num_bytes * bus_factor(kind, num_ranks) / link.bytes_per_second
    return min(_latency_seconds(protocol, link, kind, num_ranks) + moved / protocol.share for protocol in _PROTOCOLS)


def is_latency_bound(link: Link, kind: str, num_ranks: int, num_bytes: int) -> bool:
    """GPU catalogue: whether latency is over half of a transfer's shortest duration over a hardware link."""
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
