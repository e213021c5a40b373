"""Doctor on software: torch that does not fit the driver, and the dead fork of the NVML binding."""

from __future__ import annotations

import pytest

from stepscope.core.documents.machine_checks import DoctorState
from stepscope.workflow.doctor.software import (
    InstalledTorch,
    find_torch,
    judge_detachment,
    judge_torch,
    look_at_pynvml,
    look_at_python,
)

_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


@pytest.mark.parametrize(
    ("torch", "driver_cuda", "num_gpus", "state"),
    [
        (None, "", 0, _WARN),
        (InstalledTorch("2.13.0+cpu", None, None), "", 0, _OK),
        (InstalledTorch("2.13.0+cpu", None, None), "12.8", 8, _FAIL),
        (InstalledTorch("2.9.0", None, "6.4"), "", 0, _OK),
        (InstalledTorch("2.9.0", "12.8", None), "", 0, _OK),
        (InstalledTorch("2.9.0", "12.8", None), "12.8", 8, _OK),
        (InstalledTorch("2.9.0", "12.8", None), "13.0", 8, _OK),
        (InstalledTorch("2.9.0", "12.8", None), "12.4", 8, _WARN),
        (InstalledTorch("2.9.0", "13.0", None), "12.9", 8, _FAIL),
    ],
)
def test_torch_and_driver(torch: InstalledTorch | None, driver_cuda: str, num_gpus: int, state: DoctorState) -> None:
    line = judge_torch(torch, driver_cuda=driver_cuda, num_gpus=num_gpus)
    assert line.state is state
    assert (line.what_next != "") == (state is not _OK)


@pytest.mark.parametrize(
    ("cuda", "environment", "state", "words"),
    [
        ("12.8", {}, _OK, "is detached"),
        ("13.0", {"TEARDOWN_CUPTI": "1"}, _OK, "is detached"),
        ("12.8", {"TEARDOWN_CUPTI": "0"}, _WARN, "TEARDOWN_CUPTI=0 is set"),
        ("12.4", {}, _WARN, "not safe before CUDA 12.6, and torch is built for CUDA 12.4"),
    ],
)
def test_what_a_capture_leaves_behind(cuda: str, environment: dict[str, str], state: DoctorState, words: str) -> None:
    (line,) = judge_detachment(InstalledTorch("2.11.0", cuda, None), environment)
    assert (line.topic, line.state) == ("after a capture", state)
    assert words in line.found
    assert (line.what_next != "") == (state is not _OK)


_WITHOUT_CUDA = [None, InstalledTorch("2.13.0+cpu", None, None), InstalledTorch("2.9.0", None, "6.4")]


@pytest.mark.parametrize("torch", _WITHOUT_CUDA)
def test_without_cuda_a_capture_leaves_nothing(torch: InstalledTorch | None) -> None:
    assert not list(judge_detachment(torch, {}))


def test_the_torch_of_this_python_is_found_without_importing_it() -> None:
    torch = pytest.importorskip("torch")
    found = find_torch()
    assert found == InstalledTorch(str(torch.__version__), torch.version.cuda, torch.version.hip)


@pytest.mark.parametrize(
    ("versions", "topic", "state"),
    [
        ({"nvidia-ml-py": "13.615.71"}, "nvidia-ml-py", _OK),
        ({"nvidia-ml-py": "13.615.71", "pynvml": "13.0.1"}, "pynvml", _WARN),
        ({"pynvml": "11.5.3"}, "pynvml", _WARN),
        ({}, "nvidia-ml-py", _WARN),
    ],
)
def test_the_binding_and_its_fork(versions: dict[str, str], topic: str, state: DoctorState) -> None:
    (line,) = look_at_pynvml(versions.get)
    assert (line.topic, line.state) == (topic, state)


def test_missing_extras_are_named_with_the_command_that_brings_them() -> None:
    line = list(look_at_python(lambda module: module not in ("dash", "torch")))[1]
    assert line.found.endswith("with agent, analyze; without dashboard, workloads")
    assert line.what_next.endswith('pip install "stepscope[dashboard,workloads]"')
