"""Identity of a GPU: index, UUID, PCI address, name, driver and CUDA version."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.collectors.nvml.binding import GpuUnusableError, Handle, Nvml, reason_of_error, text
from stepscope.core.hardware.devices import cuda_version_text
from stepscope.core.metrics.readings import Labels, labels_of

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Names of a GPU.

    Attributes:
        index: NVML's.
        uuid: "GPU-...", never changes.
        pci_bus_id: "00000000:0F:00.0".
        facts: labels of its info metric: name, architecture, serial, ...
    """

    index: int
    uuid: str
    pci_bus_id: str
    facts: Labels

    @property
    def labels(self) -> Labels:
        """Labels of all its readings."""
        return labels_of(gpu=self.index, uuid=self.uuid)


def identify(nvml: Nvml, handle: Handle, index: int) -> GpuIdentity:
    """Ask a GPU for its names.

    Raises:
        DriverUnusableError, GpuUnusableError: it does not answer, or has no UUID or PCI bus id.
    """
    try:
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        pci_bus_id = text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)
    except nvml.NVMLError as error:
        raise GpuUnusableError(*reason_of_error(nvml, error)) from error
    facts = {"pci_bus_id": pci_bus_id}
    for name, function in (
        ("name", "nvmlDeviceGetName"),
        ("architecture", "nvmlDeviceGetArchitecture"),
        ("minor_number", "nvmlDeviceGetMinorNumber"),
        ("serial", "nvmlDeviceGetSerial"),
        ("vbios", "nvmlDeviceGetVbiosVersion"),
    ):
        facts[name] = ""  # an empty label counts as absent
        try:
            answer = getattr(nvml, function)(handle)
        except Exception as error:
            reason_of_error(nvml, error)
            continue
        facts[name] = _ARCHITECTURES.get(answer, "unknown") if name == "architecture" else text(answer)
    facts["driver"], facts["cuda"] = system_versions(nvml)
    return GpuIdentity(index, uuid, pci_bus_id, labels_of(**facts))


def system_versions(nvml: Nvml) -> tuple[str, str]:
    """Version of the driver, and the newest CUDA version that it can run; empty where they are not reported."""
    texts = []
    for function in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        try:
            texts.append(text(getattr(nvml, function)()))
        except Exception as error:
            reason_of_error(nvml, error)
            texts.append("")
    driver, cuda = texts
    return driver, cuda_version_text(int(cuda)) if cuda else ""
