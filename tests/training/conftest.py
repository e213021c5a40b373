"""Environment of a process whose identity is chosen by the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.training.run.identity import LAUNCHERS

_VARIABLES = (
    "STEPSCOPE_MESH",
    *("STEPSCOPE_RUN", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID", "PMIX_NAMESPACE"),
    *(variable for launcher in LAUNCHERS for variable in launcher),
    *("SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"),
)


@pytest.fixture
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher and no scheduler has said anything."""
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def one_rank_group(tmp_path: Path) -> Iterator[None]:
    """torch.distributed with this process alone."""
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of the machine that runs the tests is not their business."""
    monkeypatch.setenv("STEPSCOPE_AGENT_SOCKET", "")
    monkeypatch.delenv("STEPSCOPE_CAPTURE_WHEN", raising=False)


@pytest.fixture
def socket_file() -> Iterator[Path]:
    """A path short enough for a socket: the kernel takes 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
    yield folder / "agent.sock"
    shutil.rmtree(folder)
