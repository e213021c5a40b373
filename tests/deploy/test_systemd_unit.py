"""systemd unit: valid, and as restricted as an agent for GPUs can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.installation import UNIT_FILE, look_at_machine, service_files, write_service_files
from stepscope.agent.service import Agent
from tests.deploy.conftest import DEPLOY, Run, unit_here

_UNIT = DEPLOY / "systemd/stepscope-agent.service"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return unit_here(_UNIT, "agent run --config", tmp_path)


def test_systemd_understands_it(unit: Path, run: Run) -> None:
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_understands_one_that_is_written_for_this_machine(tmp_path: Path, run: Run) -> None:
    machine = look_at_machine()
    write_service_files(service_files(machine), tmp_path, lambda _: None)
    done = run("systemd-analyze", "verify", tmp_path / UNIT_FILE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_locked_up_and_what_must_not_be(unit: Path, run: Run) -> None:
    done = run("systemd-analyze", "security", "--offline=yes", "--threshold=40", unit)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    settings = [line.partition("=")[::2] for line in _UNIT.read_text().splitlines() if not line.startswith("#")]
    told = dict(settings)
    for hides in ("PrivateDevices", "ProtectProc", "ProcSubset", "PrivateNetwork", "PrivateUsers", "PrivateTmp"):
        assert hides not in told, "it hides GPUs, processes or their files"
    assert "AF_UNIX" in told["RestrictAddressFamilies"].split()
    assert (told["Type"], told["KillMode"]) == ("notify", "mixed")


def test_the_agent_takes_the_settings_beside() -> None:
    assert Agent(load_configuration(DEPLOY / "systemd/agent.toml")).address.port == 9455
