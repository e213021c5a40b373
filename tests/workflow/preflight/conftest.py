"""A node with four fake H100s: NVML is the fake library, CUDA the fake devices."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.machine_checks import CheckGroup, Preflight
from stepscope.workflow.preflight.phases import run_preflight
from stepscope.workflow.preflight.workers import PreflightRequest, WorkerPrograms
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml
from tests.collectors.fake_nvml.profiles import h100

_CHILD = Path(__file__).with_name("fake_devices.py")

RunNode = Callable[..., Preflight]


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built library."""
    return build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml")


@pytest.fixture
def machine(fake_nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """What NVML tells."""
    fake = FakeNvml(fake_nvml_library, tmp_path / "nvml.conf")
    for index in range(4):
        fake.add(h100(index))
    fake.write()
    return fake


@pytest.fixture
def run_node(machine: FakeNvml, tmp_path: Path) -> RunNode:
    """Runs a preflight there; faults are by UUID, see `fake_devices`."""

    def run(
        faults: dict[str, dict[str, Any]] | None = None,
        *,
        groups: frozenset[CheckGroup] = frozenset(CheckGroup),
        gpus: tuple[str, ...] | None = None,
        slurm_gpus: tuple[str, ...] | None = None,
        expected_gpus: int = 0,
        seconds: float = 20.0,
        driver_seconds: float = 20.0,
        **environment: str,
    ) -> Preflight:
        file = tmp_path / "faults.json"
        file.write_text(json.dumps(faults or {}))
        own = {name: value for name, value in machine.environment().items() if name != "CUDA_VISIBLE_DEVICES"}
        own |= {"FAKE_GPUS": str(file), "FAKE_GPU_COUNT": "4", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        programs = WorkerPrograms(device=(sys.executable, str(_CHILD)), environment={**own, **environment})
        request = PreflightRequest(
            quick=True,
            groups=groups,
            gpus=gpus,
            slurm_gpus=slurm_gpus,
            expected_gpus=expected_gpus,
            seconds=seconds,
            start_seconds=30.0,
            driver_seconds=driver_seconds,
        )
        return run_preflight(request, programs=programs)

    return run
