"""Which device does a name mean? The names that Slurm, CUDA, the kubelet and device plugins give.

A number is ambiguous: Slurm's and those of device files are minor numbers, NVML's index is another order on some
machines (PrincetonUniversity/jobstats#34), and CUDA's are relative to what a process may see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stepscope.collectors.jobs.devices import Device

_SHARE = re.compile(r"::\d+$")
"""What NVIDIA's device plugin puts behind the device of which it gives shares."""
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")
_GKE = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(/vgpu\d+)?")
_DRA_GPU = re.compile(r"gpu-(\d+)")
_RANGE = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?", re.ASCII)


def by_uuid(devices: Sequence[Device], name: str) -> Device | None:
    """The device of this UUID: "GPU-...", also its beginning, as CUDA allows; "MIG-...", of old drivers too."""
    old = _OLD_MIG.fullmatch(name)
    if old:
        return next((one for one in devices if one.gpu_uuid == old[1] and one.gpu_instance == old[2]), None)
    if not name.startswith(("GPU-", "MIG-")) or len(name) <= len("GPU-"):
        return None
    exact = next((one for one in devices if one.uuid == name), None)
    if exact is not None:
        return exact
    like = [one for one in devices if one.uuid.startswith(name)]
    return like[0] if len(like) == 1 else None


def by_minor(devices: Sequence[Device], number: str) -> Device | None:
    """The whole GPU with this file in /dev; None where it is split: a number does not tell which instance."""
    return _only(one for one in devices if one.minor == number and not one.gpu_instance)


def by_any_number(devices: Sequence[Device], number: str) -> Device | None:
    """The whole GPU of this number, where minor number and NVML's index mean the same one."""
    device = by_minor(devices, number)
    return device if device is not None and device.gpu == number else None


def names_of(text: str) -> list[str]:
    """Numbers and other names of "0,2-3,GPU-..."; none of "NoDevFiles", which Slurm says where it knows no files."""
    names: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is not None:
            names += map(str, range(int(match[1]), int(match[2] or match[1]) + 1))
        elif word.strip() and word.strip() != "NoDevFiles":
            names.append(word.strip())
    return names


def is_gpu_name(name: str) -> bool:
    """Whether NVIDIA's or GKE's device plugin calls a GPU or an instance so; other plugins have other names."""
    return name.startswith(("GPU-", "MIG-")) or _GKE.fullmatch(name) is not None


def visible_to_cuda(devices: Sequence[Device], text: str) -> list[Device]:
    """Devices that CUDA_VISIBLE_DEVICES names by UUID, as Slurm 25.11 sets it (SlinkyProject/slurm-operator#112).

    Numbers there count what the process may see in CUDA's order, and tell nothing to others.
    """
    return [device for name in text.split(",") if (device := by_uuid(devices, name.strip())) is not None]


def of_device_plugin(devices: Sequence[Device], name: str) -> tuple[Device | None, bool]:
    """The device that a device plugin calls so, and whether it gave a share of it.

    NVIDIA's own: UUIDs, with "::0" behind shares. GKE's: "nvidia0", "nvidia0/gi1", "nvidia0/vgpu2".
    """
    gke = _GKE.fullmatch(name)
    if gke:
        minor, instance, share = gke[1], gke[2] or "", bool(gke[3])
        return _only(one for one in devices if one.minor == minor and one.gpu_instance == instance), share
    bare = _SHARE.sub("", name)
    return by_uuid(devices, bare), bare != name


def of_dra(devices: Sequence[Device], name: str) -> Device | None:
    """The whole GPU that NVIDIA's DRA driver calls so: "gpu-0", by minor number.

    Its names of MIG instances ("gpu-0-mig-1g10gb-19-0") tell where on the GPU they were to be made, not which they are:
    they are known where the GPU has one instance of the profile.
    """
    whole = _DRA_GPU.fullmatch(name)
    if whole:
        return by_minor(devices, whole[1])
    gpu, mig, rest = name.partition("-mig-")
    number = _DRA_GPU.fullmatch(gpu)
    if not mig or not number:
        return None
    profile = rest.rsplit("-", 2)[0]
    return _only(
        one for one in devices if one.minor == number[1] and profile and one.mig_profile.replace(".", "") == profile
    )


def _only(devices: Iterable[Device]) -> Device | None:
    found = list(devices)
    return found[0] if len(found) == 1 else None
