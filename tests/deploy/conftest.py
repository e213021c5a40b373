"""The tools that operators check these files with."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs one of them; the test is skipped where it is not installed."""

    def call(tool: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
        command = [tool, *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)

    return call


def unit_here(unit: Path, start: str, folder: Path) -> Path:
    """A systemd unit with this start, in a folder, of a program that is installed here."""
    made = folder / unit.name
    text = unit.read_text()
    assert f"ExecStart=/opt/stepscope/bin/stepscope {start}" in text
    made.write_text(text.replace("/opt/stepscope/bin/stepscope", "/bin/true"))
    return made
