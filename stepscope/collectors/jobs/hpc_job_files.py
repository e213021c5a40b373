"""Which job has which GPU by the files that job prologs write for dcgm-exporter?

A file is called as the GPU's number, "0", or "0.7" for GPU instance 7; each line is a job. An epilog that failed leaves
its file behind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.jobs.designations import by_any_number
from stepscope.collectors.jobs.devices import Device

_NAME = re.compile(r"(\d{1,3})(?:\.(\d{1,3}))?", re.ASCII)
_MOST_JOBS = 16
_LONGEST = 64


def read_hpc_job_files(
    files: Files, folder: str, devices: Sequence[Device]
) -> tuple[list[tuple[Device, str]], list[str]]:
    """Devices and their jobs.

    Args:
        files: of the machine.
        folder: where the files are, below the files' root.
        devices: of the machine.

    Returns:
        Pairs of a device and a job, and names of files whose number may mean one GPU or another: NVML's index, or the
        number that Slurm tells the prolog.
    """
    names = files.names(folder)
    found: list[tuple[Device, str]] = []
    ambiguous: list[str] = []
    for name in [] if isinstance(names, Unread) else names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        text = files.read(f"{folder}/{name}")
        jobs = [] if isinstance(text, Unread) else [line.strip() for line in text.splitlines() if line.strip()]
        device = _device_of(match, devices)
        if device is None:
            ambiguous += [name] if jobs else []
            continue
        found += [(device, job) for job in dict.fromkeys(jobs[:_MOST_JOBS]) if len(job) <= _LONGEST]
    return found, ambiguous


def _device_of(match: re.Match[str], devices: Sequence[Device]) -> Device | None:
    if not match[2]:
        return by_any_number(devices, match[1])
    like = [one for one in devices if one.gpu == one.minor == match[1] and one.gpu_instance == match[2]]
    return like[0] if like else None
