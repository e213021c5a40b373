"""A machine made of files in a folder."""

from __future__ import annotations

from pathlib import Path

from stepscope.collectors.host.files import Files
from stepscope.core.documents.machine_checks import DoctorLine
from stepscope.workflow.doctor.machine import UNLIMITED, Machine


def machine(
    root: Path,
    files: dict[str, str] | None = None,
    *,
    environment: dict[str, str] | None = None,
    may_profile: bool = False,
    limits: dict[str, int] | None = None,
) -> Machine:
    """Files by path below the root."""
    for path, text in (files or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Machine(
        Files(root),
        environment or {},
        {"memlock": UNLIMITED, "nofile": 65536, **(limits or {})},
        num_cpus=8,
        may_profile=may_profile,
    )


def gpus_on_bus(count: int) -> dict[str, str]:
    """Files of so many of NVIDIA's GPUs, an audio function of theirs, and a network card."""
    folder = "sys/bus/pci/devices"
    files = {f"{folder}/0000:01:00.1/vendor": "0x10de\n", f"{folder}/0000:01:00.1/class": "0x040300\n"}
    files |= {f"{folder}/0000:02:00.0/vendor": "0x15b3\n", f"{folder}/0000:02:00.0/class": "0x020700\n"}
    for index in range(count):
        place = f"{folder}/0000:{0x10 + index:02x}:00.0"
        files |= {f"{place}/vendor": "0x10de\n", f"{place}/class": "0x030200\n"}
    return files


def by_topic(lines: list[DoctorLine]) -> dict[str, tuple[str, str]]:
    """State and what was found, by topic."""
    return {line.topic: (line.state.value, line.found) for line in lines}
