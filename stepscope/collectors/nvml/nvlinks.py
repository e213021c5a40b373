"""Where do a GPU's NVLinks end?"""

from __future__ import annotations

from stepscope.collectors.nvml.binding import Handle, Nvml, reason_of, text
from stepscope.collectors.nvml.seldom import MOST_NVLINKS

SWITCH = "switch"
_GPU, _SWITCH = 0, 2
"""nvmlIntNvLinkDeviceType_t."""


def nvlink_ends(nvml: Nvml, handle: Handle) -> dict[str, int]:
    """How many active links there are by where they end: at a GPU's PCI address, or at an NVSwitch (`SWITCH`).

    Links to other things, and those of which the driver does not tell, are left out.

    Raises:
        DriverUnusableError, GpuUnusableError: there is no use in asking for more.
    """
    ends: dict[str, int] = {}
    for link in range(MOST_NVLINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if kind == _SWITCH:
                end = SWITCH
            elif kind == _GPU:
                end = text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
            else:
                continue
        except Exception as error:
            reason_of(nvml, error)
            continue
        ends[end] = ends.get(end, 0) + 1
    return ends
