"""Which GPUs are measured, and what is known of them before?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.collectors.nvml.nvlinks import SWITCH
from stepscope.core.hardware import GpuModel, find_gpu


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """A GPU and what is known of it before it is measured.

    Attributes:
        index: the one that people know it by, NVML's where there is NVML.
        visible: what CUDA_VISIBLE_DEVICES calls it: an ordinal or a UUID.
        name, uuid, pci_bus_id: the driver's.
        pcie: generation and lanes that GPU and slot can do; None where not known.
        nvlinks: active links by where they end, see `collectors.nvml.nvlinks`; None where not known.
    """

    index: int
    visible: str
    name: str
    uuid: str = ""
    pci_bus_id: str = ""
    pcie: tuple[int, int] | None = None
    nvlinks: Mapping[str, int] | None = None

    @property
    def model(self) -> GpuModel | None:
        """What the catalogue has of it."""
        return find_gpu(self.name)

    def links_to(self, other: MeasuredGpu) -> int:
        """NVLinks over which it reaches another."""
        links = self.nvlinks or {}
        return links.get(SWITCH, 0) + links.get(other.pci_bus_id, 0)
