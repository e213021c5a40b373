"""Terminal output of an analysis: verdict, time by category, ranks and kernels, wide and narrow."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from stepscope.cli.terminal import console as terminal_console
from stepscope.cli.terminal.analysis import print_analysis, print_kernels
from stepscope.core.documents.analysis import Analysis
from stepscope.core.text.numbers import short_kernel_name
from tests.dashboard import example_run as example


def printed(analysis: Analysis) -> str:
    out = StringIO()
    print_kernels(Console(file=out, width=240, markup=False), analysis)
    return out.getvalue()


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return example.make_analysis(example.make_timelines())


def test_the_largest_kernels_come_with_what_limits_them(analysis: Analysis) -> None:
    lines = printed(analysis).splitlines()
    matmul = next(line for line in lines if "sm90_xmma_gemm" in line)
    for cell in ("aten::mm", "19.0%", "5,760", "71%", "19% registers", "compute-bound"):
        assert cell in matmul
    assert any("unfused, 4.0% of the profiled time" in line for line in lines)
    assert "    > torch.compile for chains in the model" in lines


def test_a_run_without_kernels_has_no_table(analysis: Analysis) -> None:
    assert printed(replace(analysis, roofline=replace(analysis.roofline, kernels=[]))) == ""


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::Half>", "cunn_SoftMaxForward<8, Half>"),
        ("x" * 60, "x" * 53 + "..."),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
    ],
)
def test_names_lose_what_all_have(name: str, short: str) -> None:
    assert short_kernel_name(name) == short


def shown(
    analysis: Analysis, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr(terminal_console, "PLAIN_WIDTH", width)
    print_analysis(analysis)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [80, 160])
def test_no_line_is_wider_than_the_terminal(
    analysis: Analysis, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in (analysis, example.with_job_time(analysis)):
        lines = shown(one, width, monkeypatch, capsys)
        assert max(map(len, lines)) <= width
        assert any(line.startswith("BOTTLENECK  ") for line in lines)
        matmul = next(line for line in lines if "sm90_xmma_gemm" in line)
        assert "19.0%" in matmul
        assert "compute-bound" in matmul, "only the names give way"


def test_a_long_line_goes_on_below_its_text(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(example.with_job_time(analysis), 80, monkeypatch, capsys)
    at = next(at for at, line in enumerate(lines) if line.startswith("BOTTLENECK"))
    assert lines[at : at + 2] == [
        "BOTTLENECK  Data loading on rank 3: 78.4% of training time (149.0 of 190.1 ms",
        "            per step, 34 of 40 steps observed)",
    ]
    fix = next(at for at, line in enumerate(lines) if line.startswith("  Fix       num_workers"))
    assert lines[fix + 1].startswith("            ")


def test_the_breakdown_is_of_training_time_and_the_ranks_of_the_profiled_steps(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(example.with_job_time(analysis), 120, monkeypatch, capsys)
    titles = [
        line for line in lines if line.startswith(("Training time", "Wall-clock", "Time of each", "Kernels with"))
    ]
    assert titles == [
        "Training time by category",
        "Wall-clock time 9.0 s: training 84.5%, start-up 11.9%, after the last step 3.6%",
        "Time of each rank, of the 5 profiled steps",
        "Kernels with most time, of the 5 profiled steps",
    ]
    assert ["Data", "loading", "78.4%", "149.0"] in [line.split() for line in lines]
    assert "category rank 0 rank 1 rank 2 rank 3 rank 4 rank 5 rank 6 rank 7 all" in [
        " ".join(line.split()) for line in lines
    ]


def test_a_narrow_terminal_has_the_first_ranks(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Time of each rank (the first 5 of 8), of the 5 profiled steps" in shown(analysis, 80, monkeypatch, capsys)


def test_traces_alone_are_profiled_time_with_the_ranks_of_each_cause(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(analysis, 120, monkeypatch, capsys)
    at = lines.index("Profiled time by category")
    assert lines[at + 2].split() == ["category", "share", "ms", "per", "step", "ranks"]
    assert any(line.split()[0] == "Straggler" and line.endswith(" 5") for line in lines[at:] if line.strip())
