"""Does this process run in a container, and what does that hide from it?"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.doctor import DoctorLine, DoctorState
from stepscope.workflow.doctor.machine import Machine

_OK, _WARN = DoctorState.OK, DoctorState.WARN
_INITS = frozenset({"systemd", "init", "openrc-init", "runit", "s6-svscan"})


def look_at_container(machine: Machine) -> Iterator[DoctorLine]:
    """Which container, and whether the machine's processes are in sight."""
    kind = container_kind(machine)
    if kind is None:
        yield DoctorLine("container", _OK, "none")
        return
    first = (machine.text("proc/1/comm") or "").strip()
    if first in _INITS:
        yield DoctorLine("container", _OK, f"{kind}, with the machine's processes in sight")
        return
    found = f"{kind}: processes outside of it are out of sight, so that the agent cannot say whose a GPU is"
    advice = "for an agent: hostPID: true or --pid=host; for a job this is as it should be"
    yield DoctorLine("container", _OK, found, advice)


def container_kind(machine: Machine) -> str | None:
    """Kubernetes, Docker, Podman, another's name; None outside."""
    if "KUBERNETES_SERVICE_HOST" in machine.environment:
        return "Kubernetes"
    if machine.files.exists(".dockerenv"):
        return "Docker"
    if machine.files.exists("run/.containerenv"):
        return "Podman"
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if name in machine.environment:
            return "Apptainer"
    return machine.environment.get("container") or None
