"""Last line of `stepscope run`: its content, and the process that prints it."""

from __future__ import annotations

import io

import pytest

from stepscope.zero_code.automatic_run import print_line, print_next_steps, prints_on_this_rank


@pytest.mark.parametrize(("num_steps", "words"), [(1, "1 step measured"), (20, "20 steps measured")])
def test_it_tells_how_many_steps_and_where(num_steps: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_next_steps("runs/a", num_steps)
    print_next_steps("", num_steps)
    assert capsys.readouterr().err == f"stepscope: {words}; next: stepscope analyze runs/a, stepscope steps runs/a\n"


def test_where_nobody_listens_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (closed, None):
        monkeypatch.setattr("sys.stderr", stderr)
        print_line("anything")


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_rank_0_speaks_whoever_started_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(other, raising=False)
    assert prints_on_this_rank()
    monkeypatch.setenv(variable, "0")
    assert prints_on_this_rank()
    monkeypatch.setenv(variable, "1")
    assert not prints_on_this_rank()
