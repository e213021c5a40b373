"""Terminal output of an analysis: the kernel table."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from stepscope.cli.terminal.analysis import print_kernels
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
