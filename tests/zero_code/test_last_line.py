"""What is the last line, and who says it?"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from stepscope.zero_code.last_line import say, say_where, speaks_here


@pytest.mark.parametrize(("num_steps", "words"), [(1, "1 step measured"), (20, "20 steps measured")])
def test_it_tells_how_many_steps_and_where(num_steps: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    say_where(Path("runs/a"), num_steps)
    say_where(None, num_steps)
    assert capsys.readouterr().err == f"stepscope: {words}; next: stepscope analyze runs/a\n"


def test_where_nobody_listens_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (closed, None):
        monkeypatch.setattr("sys.stderr", stderr)
        say("anything")


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_rank_0_speaks_whoever_started_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(other, raising=False)
    assert speaks_here()
    monkeypatch.setenv(variable, "0")
    assert speaks_here()
    monkeypatch.setenv(variable, "1")
    assert not speaks_here()
