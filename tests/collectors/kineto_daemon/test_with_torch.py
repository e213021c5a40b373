"""The real libkineto: a plain torch job, two ranks, captured on the first request while it is still importing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collectors.kineto_daemon.desk import KinetoDesk, News, Wish
from stepscope.core.agent_messages import AnswerState
from stepscope.workflow.analyze import analyze

JOB = """
import os, sys, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(8, 64)
while True:
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    time.sleep(0.1)
"""


@pytest.fixture
def ranks(tmp_path: Path, socket_folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that know nothing of stepscope. They ask each second, as a file of libkineto's own tells them to."""
    (tmp_path / "kineto.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = os.environ | {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(socket_folder),
        "KINETO_CONFIG": str(tmp_path / "kineto.conf"),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "4711",
    }
    command = [sys.executable, "-c", JOB, str(tmp_path / "store")]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(2):
            own = environment | {"RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=own, stderr=subprocess.DEVNULL))
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def test_two_ranks_are_captured_at_the_same_steps_and_their_traces_analysed(
    tmp_path: Path, socket_folder: Path, ranks: list[subprocess.Popen[bytes]]
) -> None:
    with KinetoDesk(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        end = time.monotonic() + 100
        while len(desk.targets()) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        keys = tuple(target.key for target in desk.targets())
        desk.request(Wish("one", keys, 3))
        told: list[News] = []
        while len(told) < 2:
            assert time.monotonic() < end
            told += [one for one in desk.news() if one.outcome.state.is_final]
            time.sleep(0.05)
    assert [(one.outcome.state, one.outcome.reason) for one in told] == [(AnswerState.DONE, "")] * 2
    assert [process.poll() for process in ranks] == [None, None]  # training goes on, without its daemon
    run = tmp_path / "runs/slurm-4711"
    assert sorted(path.name for path in (run / "traces/step0").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    analysis = analyze([str(run)]).analysis
    assert (analysis.job.ranks, analysis.job.num_steps) == ([0, 1], 3)
