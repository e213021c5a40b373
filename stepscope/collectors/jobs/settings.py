"""Settings of job attribution that the operator decides: sockets, folders, names of teams and projects."""

from __future__ import annotations

from dataclasses import dataclass, field

IDLE_SECONDS = 300.0
KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
TEAM_NAMES = ("STEPSCOPE_TEAM", "stepscope.io/team", "team", "TEAM")
PROJECT_NAMES = ("STEPSCOPE_PROJECT", "stepscope.io/project", "project", "PROJECT", "WANDB_PROJECT")


@dataclass(frozen=True, slots=True)
class TeamNaming:
    """Labels and annotations of pods, and variables of processes; of each list the first that is set counts.

    Attributes:
        team, project: their names.
    """

    team: tuple[str, ...] = TEAM_NAMES
    project: tuple[str, ...] = PROJECT_NAMES


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings.

    Attributes:
        idle_seconds: without kernels for so long, a GPU that is held is idle.
        naming: labels and variables that name teams and projects.
        kubelet_socket: of the pod-resources API.
        node: name of this node for Kubernetes; NODE_NAME of the environment, or the host's, where it is empty.
        hpc_job_folder: where job prologs write files for dcgm-exporter; empty: nowhere.
    """

    idle_seconds: float = IDLE_SECONDS
    naming: TeamNaming = field(default_factory=TeamNaming)
    kubelet_socket: str = KUBELET_SOCKET
    node: str = ""
    hpc_job_folder: str = ""
