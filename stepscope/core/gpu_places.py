"""Which GPU or MIG instance is a reading of, when two sources name it each in their own way?

NVML tells an instance by its own UUID; dcgm-exporter tells the whole GPU's UUID, and the instance's number beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepscope.core.readings import Reading

Place = tuple[str, str]
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

    def place(self, labels: Mapping[str, str]) -> Place | None:
        """Of these labels; None where they are no GPU's. A process is its GPU's, also where it holds an instance."""
        gpu, uuid = labels.get("gpu", ""), labels.get("uuid", "")
        instance = "" if "pid" in labels else labels.get("gpu_instance", "")
        whole = self._uuids.get(gpu, gpu) if instance and not uuid.startswith("GPU-") else uuid or gpu
        return (whole, instance) if whole else None
