"""Runner of scripts under `stepscope run`, and the files they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interrupts import default_interrupt

_QUIET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STEPSCOPE_DISABLE", "STEPSCOPE_RUN", "TORCHELASTIC_RUN_ID")

LOOP = """
import torch
torch.set_num_threads(1)

def train(num_steps, after=lambda step: None):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)
"""
"""What most scripts begin with."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended, in a folder of its own.

    Attributes:
        code: its exit code; minus the signal that ended it.
    """

    folder: Path
    code: int
    stdout: str
    stderr: str

    @property
    def runs(self) -> list[Path]:
        """Run directories."""
        return sorted(path.parent for path in self.folder.glob("runs/*/steps"))

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        """The step lines of a rank of the only run."""
        (run,) = self.runs
        return [json.loads(line) for line in (run / "steps" / f"rank{rank}.jsonl").read_text().splitlines()]

    def ended(self) -> list[str]:
        """How each attempt of the only run ended."""
        (run,) = self.runs
        return [attempt["ended"] for attempt in json.loads((run / "run.json").read_text())["attempts"]]


RunScript = Callable[..., Ran]


@pytest.fixture(scope="module")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> RunScript:
    """Writes a script and runs it under `stepscope run`."""

    def run(
        script: str,
        *options: str,
        before: tuple[str, ...] = (sys.executable,),
        environment: dict[str, str] | None = None,
        kill: signal.Signals | None = None,
    ) -> Ran:
        """`before` stands before the script's name; `kill` is sent once the script has printed a line."""
        folder = tmp_path_factory.mktemp("job")
        (folder / "script.py").write_text(textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "-m", "stepscope", "run", *options, "--", *before, "script.py"],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name not in _QUIET} | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_interrupt,
        )
        first = ""
        if kill is not None:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(0.3)
            process.send_signal(kill)
        stdout, stderr = process.communicate(timeout=100)
        return Ran(folder, process.returncode, first + stdout, stderr)

    return run
