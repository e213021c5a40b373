"""`stepscope capture` of a plain torch job, while it still imports torch: a real agent, the real libkineto."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.workflow.nodes import capture as capture_module

pytest.importorskip("torch")

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


@contextmanager
def agent(folder: Path, sockets: Path) -> Iterator[str]:
    """A real agent's URL."""
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0", "--socket", ""]
    command += ["--state-dir", str(folder / "state"), "--kineto-socket-dir", str(sockets)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: "/metrics" in (folder / "log").read_text())
            yield (folder / "log").read_text().split()[2].removesuffix("/metrics")
        finally:
            process.terminate()


@contextmanager
def ranks(folder: Path, sockets: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that know nothing of stepscope. They ask each second, as a file of libkineto's own tells them to."""
    (folder / "kineto.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = os.environ | {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(sockets),
        "KINETO_CONFIG": str(folder / "kineto.conf"),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "4711",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-c", JOB, str(folder / "store")]
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


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_two_plain_ranks_are_captured_at_the_same_steps_on_the_first_command(
    tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent(tmp_path, place.parent) as url:
        capture = ["capture", "--agent", url, "--token-file", str(tmp_path / "state/token"), "--job", "4711"]
        monkeypatch.setattr(capture_module, "_UNKNOWN_SECONDS", 0.0)
        assert run(*capture, "--steps", "3") == 3
        assert "KINETO_USE_DAEMON=1" in capsys.readouterr().err  # what would make a job known
        monkeypatch.setattr(capture_module, "_UNKNOWN_SECONDS", 60.0)  # torch may take long to import here
        with ranks(tmp_path, place.parent) as processes:
            assert run(*capture, "--steps", "3") == 0
            told = capsys.readouterr()
            assert "no process of job 4711 is known yet" in told.err
            lines = told.out.splitlines()
            assert run(*capture, "--steps", "3", "--start-step", "5") == 3
            assert "libkineto does not tell at which step" in capsys.readouterr().err
            assert [process.poll() for process in processes] == [None, None]
    traces = tmp_path / "state/captures/slurm-4711/traces/step0"
    assert [line.split("  ")[:3] for line in lines[:2]] == [[f"rank {rank}", "done", "3 steps"] for rank in range(2)]
    assert lines[0].endswith(str(traces / "rank0.json.gz"))
    assert lines[2] == f"stepscope analyze {traces}"
    assert run("analyze", str(traces), "--json") == 0
    analysis = json.loads(capsys.readouterr().out)
    assert (analysis["job"]["ranks"], analysis["job"]["num_steps"]) == ([0, 1], 3)
