"""Doctor on drivers: missing, mismatched or hanging, hidden GPUs, inaccessible device files, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.collectors.host.processes import count_gpus_on_bus
from stepscope.workflow.doctor.software import ask_driver, look_at_driver
from stepscope.workflow.preflight.workers import WorkerPrograms
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml
from tests.collectors.fake_nvml.profiles import a100, h100
from tests.workflow.doctor.machines import by_topic, gpus_on_bus, machine


@pytest.fixture
def nvml(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> FakeNvml:
    """A node with one H100 and one A100."""
    fake = FakeNvml(build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml"), tmp_path / "nvml.conf")
    fake.add(h100(0))
    fake.add(a100(1))
    fake.write()
    return fake


def look(nvml: FakeNvml, tmp_path: Path, files: dict[str, str]) -> dict[str, tuple[str, str]]:
    nvml.write()
    facts = ask_driver(WorkerPrograms(environment=nvml.environment()), seconds=8.0)
    return by_topic(list(look_at_driver(machine(tmp_path, files), facts)))


def test_a_node_with_a_hidden_gpu_and_a_file_too_few(nvml: FakeNvml, tmp_path: Path) -> None:
    files = {**gpus_on_bus(3), "dev/nvidia0": "", "dev/nvidiactl": "", "dev/nvidia-caps": "", "dev/nvidia-uvm": ""}
    found = look(nvml, tmp_path, files)
    state, counters = found.pop("profiling counters")
    assert state == "warn"
    assert counters.startswith("none on 1 of 2 GPUs: this GPU has no GPM")
    assert found == {
        "driver": ("ok", "580.159.03, up to CUDA 13.0; 2 GPUs answer"),
        "GPUs": ("warn", "3 are on the PCI bus, the driver knows 2"),
        "/dev/nvidia*": ("warn", "/dev has the files of 1 of 2 GPUs"),
    }
    assert count_gpus_on_bus(machine(tmp_path).files) == 3


def test_a_lost_gpu(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.set(1, lost=1)
    found = look(nvml, tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidia-uvm": ""})
    assert found["GPU 1"][0] == "fail"
    assert "XID 79" in found["GPU 1"][1]
    assert found["profiling counters"] == ("ok", "tensor, SM and memory activity through GPM")
    assert found["driver"] == ("ok", "580.159.03, up to CUDA 13.0; 1 GPU answers")


@pytest.mark.parametrize(("error", "words"), [("9", "not loaded"), ("18", "reboot, or reload the module")])
def test_a_driver_that_cannot_be_asked(error: str, words: str, nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.values["error"] = error
    state, found = look(nvml, tmp_path, gpus_on_bus(2))["driver"]
    assert state == "fail"
    assert words in found
    assert found.endswith("; 2 of NVIDIA's GPUs are on the PCI bus")


def test_a_gpu_that_hangs_hides_no_other(nvml: FakeNvml, tmp_path: Path) -> None:
    files = {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidia-uvm": ""}
    nvml.set(1, hang="any")
    nvml.write()
    facts = ask_driver(WorkerPrograms(environment=nvml.environment()), seconds=4.0)
    found = by_topic(list(look_at_driver(machine(tmp_path, files), facts)))
    assert found["driver"] == ("ok", "580.159.03, up to CUDA 13.0; 1 GPU answers")
    assert found["GPU 1"][0] == "fail"
    assert found["GPU 1"][1].startswith("no answer within 4 s; the GPU or its driver hangs: drain the node")
    assert found["profiling counters"] == ("ok", "tensor, SM and memory activity through GPM")


def test_gpus_that_hang_once_they_are_read_do_not_answer(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.values["hang"] = "nvmlDeviceGetTemperature"
    nvml.write()
    facts = ask_driver(WorkerPrograms(environment=nvml.environment()), seconds=4.0)
    found = by_topic(list(look_at_driver(machine(tmp_path, gpus_on_bus(2)), facts)))
    assert found["driver"] == ("fail", "0 GPUs answer")
    assert found["GPU 0"][1].startswith("no answer within 4 s; ")
    assert found["GPU 1"][0] == "fail"
    assert "GPUs" not in found


def test_a_driver_that_hangs(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.values["hang"] = "any"
    nvml.write()
    facts = ask_driver(WorkerPrograms(environment=nvml.environment()), seconds=1.0)
    assert by_topic(list(look_at_driver(machine(tmp_path), facts)))["driver"] == ("fail", "no answer within 1 s")
