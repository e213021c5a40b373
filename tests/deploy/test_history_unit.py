"""systemd unit of the recorder of the metric history: valid, and locked up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY, Run, unit_here

_UNIT = DEPLOY / "systemd/stepscope-history.service"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return unit_here(_UNIT, "history run ", tmp_path)


def test_systemd_understands_it(unit: Path, run: Run) -> None:
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_is_locked_up(unit: Path, run: Run) -> None:
    done = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", unit)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
