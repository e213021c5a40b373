"""Which sources of jobs does this node have? Those that cannot be here are not asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stepscope.agent.jobs.collector import JobCollector
from stepscope.agent.node_name import node_name
from stepscope.agent.schedule import ScheduledSource
from stepscope.agent.source_state import SourceState
from stepscope.collectors.jobs.kubernetes.api_server import ApiServer
from stepscope.collectors.jobs.kubernetes.pod_directory import PodDirectory
from stepscope.collectors.jobs.kubernetes.pod_resources import GivenDevice
from stepscope.collectors.jobs.settings import JobSettings
from stepscope.collectors.jobs.slurm_names import SlurmNamesCollector

JOBS = "jobs"
"""The source of who uses which GPU."""
_JOBS_SECONDS, _OTHERS_SECONDS = 5.0, 10.0


def job_sources(
    gpu_states: Callable[[], Sequence[SourceState]],
    settings: JobSettings,
    *,
    interval: float = _JOBS_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> list[ScheduledSource]:
    """The sources, to be started by whoever takes them.

    Args:
        gpu_states: the sources that read GPUs, in the order of their trust.
        settings: of the operator.
        interval: between two looks at who has which GPU, seconds.
        environment: variables that tell a pod of its cluster; the process's own where none are given.
    """
    environment = os.environ if environment is None else environment
    found: list[ScheduledSource] = []
    given: Callable[[], Sequence[GivenDevice]] = tuple
    pods: PodDirectory | None = None
    slurm: SlurmNamesCollector | None = None
    if Path(settings.kubelet_socket).parent.is_dir():
        from stepscope.collectors.jobs.kubernetes.kubelet import KubeletCollector  # takes memory that few need

        kubelet = KubeletCollector(settings.kubelet_socket)
        given = kubelet.given_now
        found.append(ScheduledSource("kubelet", kubelet, interval=_OTHERS_SECONDS))
    server = ApiServer.of_pod(environment)
    if server is not None:
        node = node_name(settings.node, environment)
        pods = PodDirectory(server, node, settings.naming)
        found.append(ScheduledSource("kubernetes_api", pods, interval=_OTHERS_SECONDS))
    names = SlurmNamesCollector()
    if names.is_possible:
        slurm = names
        found.append(ScheduledSource("squeue", slurm, interval=_OTHERS_SECONDS))
    jobs = JobCollector(gpu_states, settings, given=given, pods=pods, slurm=slurm)
    return [ScheduledSource(JOBS, jobs, interval=interval), *found]
