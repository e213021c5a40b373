"""Entry points: the decorator measures loops and steps, and leaves functions unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.training import once, profiled

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_job")


def _indices(run: Path) -> list[int]:
    return [json.loads(line)["index"] for line in (run / "steps" / "rank0.jsonl").read_text().splitlines()]


def test_a_loop_is_given_its_profile_at_each_call(tmp_path: Path) -> None:
    @profiled(run="r", out=tmp_path, schedule=once(wait=1))
    def train(num_steps: int, prof: Any) -> str:
        """Learns."""
        for _ in range(num_steps):
            prof.step()
        return "learned"

    assert (train(3), train(2), train.__doc__) == ("learned", "learned", "Learns.")
    assert _indices(tmp_path / "r") == [0, 1, 2, 3, 4]


def test_each_call_of_a_step_that_returns_is_one_and_the_process_ends_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import stepscope\n"
        f"@stepscope.profiled(run='r', out={str(tmp_path)!r})\n"
        "def step(batch):\n"
        "    return 1 / batch\n"
        "print([step(batch) for batch in (1, 2, 4)])\n"
        "step(0)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[1.0, 0.5, 0.25]\n"
    assert "ZeroDivisionError" in done.stderr
    assert _indices(tmp_path / "r") == [0, 1, 2]
    assert json.loads((tmp_path / "r" / "run.json").read_text())["attempts"][0]["ended"] == "exception"
