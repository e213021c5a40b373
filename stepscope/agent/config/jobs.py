"""How is it found out who uses the GPUs? The section `jobs` of the configuration; docs/jobs.md."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.agent.config.keys import key
from stepscope.collectors.jobs.settings import (
    IDLE_SECONDS,
    KUBELET_SOCKET,
    PROJECT_NAMES,
    TEAM_NAMES,
    JobSettings,
    Naming,
)


@dataclass(frozen=True, slots=True)
class Jobs:
    """What of jobs the operator decides."""

    idle_seconds: float = key(IDLE_SECONDS, "A GPU that is held without kernels for so long is idle.", least=1.0)
    team_names: tuple[str, ...] = key(TEAM_NAMES, "Labels and variables that name a team; the first counts.")
    project_names: tuple[str, ...] = key(PROJECT_NAMES, "Labels and variables that name a project.")
    hpc_job_folder: str = key("", "Folder of the files that job prologs write for dcgm-exporter.", metavar="FOLDER")
    kubelet_socket: str = key(KUBELET_SOCKET, "Socket of the kubelet's pod-resources API.")
    node: str = key("", "This machine's name, in Kubernetes the node's; empty: NODE_NAME, or the host's name.")

    def settings(self) -> JobSettings:
        """For those who look."""
        naming = Naming(self.team_names, self.project_names)
        return JobSettings(self.idle_seconds, naming, self.kubelet_socket, self.node, self.hpc_job_folder)
