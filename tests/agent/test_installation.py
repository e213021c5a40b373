"""Installation as a systemd service: the files fit the machine, systemd and the agent take them, settings are kept."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stepscope.agent import installation
from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.installation import SETTINGS_FILE, UNIT_FILE, USER_FILE, ServiceMachine, service_files
from stepscope.agent.service import Agent
from stepscope.core.errors import UsageError
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.deploy.conftest import DEPLOY

_MACHINE = ServiceMachine(("/opt/stepscope/bin/stepscope",), ("video", "render", "systemd-journal"), 0)


def _setting(unit: str, name: str) -> str:
    (value,) = [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{name}=")]
    return value


def test_the_files_of_deploy_are_those_of_a_machine_without_gpus() -> None:
    contents = service_files(_MACHINE)
    for name, text in contents.items():
        shipped = DEPLOY / "systemd" / Path(name).name.replace("stepscope.conf", "stepscope.sysusers.conf")
        assert shipped.read_text() == text
    assert list(contents) == [UNIT_FILE, USER_FILE, SETTINGS_FILE]


def test_they_fit_the_machine(tmp_path: Path) -> None:
    page = "http://127.0.0.1:9400/metrics"
    contents = service_files(ServiceMachine(("/a b/50%/python", "-m", "stepscope"), ("video", "gpu"), 8, page))
    unit = contents[UNIT_FILE]
    start = '"/a b/50%%/python" -m stepscope agent run --config /etc/stepscope/agent.toml'
    assert _setting(unit, "ExecStart") == start
    assert _setting(unit, "SupplementaryGroups") == "video gpu"
    file = tmp_path / "agent.toml"
    file.write_text(contents[SETTINGS_FILE])
    settings = load_configuration(file).settings
    assert (settings.health.expected_gpus, settings.dcgm.exporter) == (8, page)
    without = service_files(ServiceMachine(("/x",), (), 0))
    assert "SupplementaryGroups" not in without[UNIT_FILE]
    assert "dcgm" not in tomllib.loads(without[SETTINGS_FILE])


def test_settings_are_kept_and_the_unit_is_replaced(tmp_path: Path) -> None:
    said: list[str] = []
    installation.write_service_files(service_files(_MACHINE), tmp_path, said.append)
    assert [line.rpartition(": ")[2] for line in said] == ["written"] * 3
    (tmp_path / SETTINGS_FILE).write_text("[gpus]\ninterval = 2.0\n")
    (tmp_path / UNIT_FILE).write_text("[Service]\n")
    said.clear()
    installation.write_service_files(service_files(_MACHINE), tmp_path, said.append)
    assert said[0].endswith(": replaced")
    assert said[1].endswith(": is up to date")
    assert ": is kept; " in said[2]
    assert (tmp_path / SETTINGS_FILE).read_text() == "[gpus]\ninterval = 2.0\n"
    assert (tmp_path / UNIT_FILE).stat().st_mode & 0o777 == 0o644
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/etc/systemd/system/stepscope-agent\.service: cannot be written"):
        installation.write_service_files(service_files(_MACHINE), tmp_path / "file", said.append)


def test_a_program_that_the_user_cannot_reach(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    program = tmp_path / "bin/stepscope"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert installation._closed_folder(program) is not None
    assert installation.service_command(str(program.with_name("python"))) == (
        str(program.with_name("python")),
        "-m",
        "stepscope",
    )
    program.chmod(0o755)
    assert installation.service_command(str(program.with_name("python"))) == (str(program),)


def test_the_command_on_a_machine_with_gpus(machine: FakeNvml, tmp_path: Path) -> None:
    for index in range(2):
        machine.add(profiles.h100(index))
    machine.write()

    def install(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stepscope", "agent", "install", *options]
        return subprocess.run(
            command, env=machine.environment(), capture_output=True, text=True, timeout=100, check=False
        )

    dry = install("--systemd", "--dry-run", "--prefix", str(tmp_path))
    assert dry.returncode == 0
    assert not list(tmp_path.glob("etc/**/*"))
    done = install("--systemd", "--prefix", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"  systemctl --root={tmp_path} enable stepscope-agent\n" in done.stdout
    for name in (UNIT_FILE, USER_FILE, SETTINGS_FILE):
        assert (tmp_path / name).read_text() in dry.stdout
    assert load_configuration(tmp_path / SETTINGS_FILE).settings.health.expected_gpus == 2
    assert Agent(load_configuration(tmp_path / SETTINGS_FILE)).address.port == 9455
    unnamed = install()
    assert unnamed.returncode == 2
    assert "--systemd" in unnamed.stderr
