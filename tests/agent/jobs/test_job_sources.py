"""Jobs of the whole agent: on the fake driver, with real processes and a real gRPC server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.agent.config.settings import JobSettings
from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.jobs.job_collector import JOBS, job_sources
from stepscope.agent.sources import AgentSources
from stepscope.core.documents.jobs import Assignment, JobKind, JobSource
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.jobs.kubernetes.fake_kubelet import Kubelet, container, pod

_QUICK = ProbeTiming(interval=0.1, slow_poll=0.2, deadline=1.0, start_deadline=20, look=2.0, slow=0.3, grace=2)


def _until(sources: AgentSources, is_so: Callable[[dict[str, Assignment]], bool]) -> dict[str, Assignment]:
    end = time.monotonic() + 60
    found: dict[str, Assignment] = {}
    while time.monotonic() < end:
        found = {one.device.index: one for one in sources.assignments()}
        if is_so(found):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_a_process_and_a_pod(machine: FakeNvml, tmp_path: Path) -> None:
    with (
        Kubelet(tmp_path) as kubelet,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as training,
    ):
        for index in range(2):
            machine.add(profiles.h100(index))
        machine.set(0, compute__count=1, compute__0__pid=training.pid, compute__0__memory=1 << 30, utilization=90)
        machine.write()
        kubelet.answers(pods=[pod("ml", "notebook-0", container("main", str(profiles.h100(1)["uuid"])))])
        settings = JobSettings(kubelet_socket=str(kubelet.socket))
        with AgentSources(_QUICK, environment=machine.environment(), jobs=settings) as sources:
            found = _until(sources, lambda now: now.keys() == {"0", "1"})
            page = MetricsPage(sources.states).encoded()[0].decode()
            pids = sources.pids_of_job(str(training.pid))
        training.communicate(b"\n")
    assert found["0"].job.kind is JobKind.PROCESSES
    assert found["0"].job.id.startswith(f"{training.pid}-")
    assert pids == {training.pid}
    assert (found["1"].job.id, found["1"].sources) == ("ml/notebook-0", (JobSource.KUBELET,))
    assert 'stepscope_gpu_use_state{gpu="0",state="busy",uuid=' in page
    assert (
        'stepscope_job_info{account="ml",job_id="ml/notebook-0",job_kind="kubernetes",job_name="notebook-0"} 1.0'
        in page
    )
    assert "stepscope_job_gpu_seconds_total{" in page
    assert 'stepscope_agent_collector_up{collector="kubelet",reason=""} 1.0' in page


def test_sources_that_cannot_be_here_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = JobSettings(kubelet_socket=str(tmp_path / "none" / "kubelet.sock"))
    assert [source.state().name for source in job_sources(list, settings, environment={})[1]] == [JOBS]
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    (tmp_path / "none").mkdir()
    names = [source.state().name for source in job_sources(list, settings, environment={})[1]]
    assert names == [JOBS, "kubelet", "squeue"]


def test_http_2_is_loaded_with_a_kubelet_alone() -> None:
    code = (
        "import sys, stepscope.agent.sources\n"
        "from stepscope.agent.jobs.job_collector import *\n"
        "job_sources(list, JobSettings(kubelet_socket='/none/x'), environment={})\n"
        "print([name for name in ('h2', 'grpc', 'numpy') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert told.stdout == "[]\n"
