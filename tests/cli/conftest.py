"""What is asked of all that the commands print, in every test of this folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

_THINGS = (
    "activities|agents|boundaries|calls|captures|collectives|communications|copies|cores|dumps|events|files|findings|"
    "GPUs|jobs|kernels|launches|layers|lines|machines|metrics|micro-batches|nodes|others|pages|processes|ranks|rounds|"
    "runs|samples|stages|steps|times|traces|ways"
)
ONE_AS_SEVERAL = re.compile(rf"(?<![\d.,:/<-])\b1 (?:(?!where|of|in|to|and|or|is|has)[a-z-]+ )?(?:{_THINGS})\b")
"""One thing said as if there were several: '1 steps', '1 captured steps'."""


@pytest.fixture(autouse=True)
def one_is_no_plural(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test of a command reads of its output counts one thing as one."""
    said: list[str] = []
    read, run = pytest.CaptureFixture.readouterr, subprocess.run

    def readouterr(capture: pytest.CaptureFixture[Any]) -> Any:
        captured = read(capture)
        said.extend(map(str, captured))
        return captured

    def recorded_run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
        done = run(*arguments, **options)
        said.extend(str(text) for text in (done.stdout, done.stderr) if text)
        return done

    monkeypatch.setattr(pytest.CaptureFixture, "readouterr", readouterr)
    monkeypatch.setattr(subprocess, "run", recorded_run)
    yield
    faults = [fault[0] for text in said for fault in ONE_AS_SEVERAL.finditer(text)]
    assert not faults, faults
