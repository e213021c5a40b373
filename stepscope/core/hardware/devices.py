"""Identity of a device: labels and keys of a GPU or MIG instance, across sources that name it differently.

NVML names an instance by its own UUID; dcgm-exporter by the whole GPU's UUID and the instance's number beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepscope.core.metrics.readings import GPU_LABELS, Labels, Reading

DevicePlace = tuple[str, str]
"""UUID of the whole GPU (its index where it has none), and NVML's id of the GPU instance, empty of the whole."""


class GpuPlaces:
    """Places as one source tells of them, which numbers GPUs in its own way."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        """`readings`: all of the source, or those of one metric that every whole GPU has."""
        self._uuids: dict[str, str] = {}
        for reading in readings:
            labels = dict(reading.labels)
            if labels.get("gpu") and labels.get("uuid") and "gpu_instance" not in labels:
                self._uuids[labels["gpu"]] = labels["uuid"]

    def place(self, labels: Mapping[str, str]) -> DevicePlace | None:
        """Of these labels; None where they are no GPU's. A process is its GPU's, also where it holds an instance."""
        gpu, uuid = labels.get("gpu", ""), labels.get("uuid", "")
        instance = "" if "pid" in labels else labels.get("gpu_instance", "")
        whole = self._uuids.get(gpu, gpu) if instance and not uuid.startswith("GPU-") else uuid or gpu
        return (whole, instance) if whole else None


def device_of(labels: Labels) -> Labels:
    """Those of the labels that say which device it is."""
    return tuple(pair for pair in labels if pair[0] in GPU_LABELS)


def device_key(labels: Mapping[str, str]) -> str:
    """Which device of a machine: its UUID, or its index where it has hung since before it told one; empty: none.

    A MIG instance that only a dcgm-exporter tells of carries its GPU's UUID: its number is put behind.
    """
    uuid, gpu, instance = labels.get("uuid", ""), labels.get("gpu", ""), labels.get("gpu_instance", "")
    if instance and uuid.startswith("GPU-"):
        return f"{uuid}/{instance}"
    return uuid or (f"gpu {gpu}" if gpu else "")
