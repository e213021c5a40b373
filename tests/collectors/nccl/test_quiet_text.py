"""Blocks of a log without anything of NCCL's are passed over, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepscope.collectors.nccl.quiet_text import is_quiet, lines_with_marks, numbered_lines
from stepscope.collectors.nccl.wrapped_lines import WidthDetector

_STEP = "2026-11-30 08:00:00,123 - INFO - trainer.py:212 - rank 3: step 17 loss 2.5 | time (ms): 12\n"


@pytest.mark.parametrize(
    "line",
    [
        "node1:17:42 [0] NCCL INFO NET/IB : No device found.",
        "node1:17:42 [0] WARN Call to bind failed",
        "[rank1]: Last error:",
        "[Rank 1] last enqueued work: 5, last completed work: 4",
        "[rank0]:[E] ProcessGroupNCCL's watchdog got stuck for 480 seconds",
        "Bus error (core dumped): out of shared memory",
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728",
        "        1024           256     float     sum      -1    12.1    0.08    0.15      0",
        "[1] 1024 256 int32 none 0 12.1 0.08 0.15 0",
        "node1 | 1024 256 bfloat16 sum -1 12.1 0.08 0.15 0",
        "2026-11-30T08:00:00.1Z stdout F 1024 256 half sum -1 12.1 0.08 0.15 0",
        "  + PCI[12.0] - NIC/0",
        "CPU/0 (1/1/2)",
        "Job summary",
        '{"communicators": []}',
        '<system version="1">',
        'XPU_TIMER_COMMON_HANG{rank="0"} 1',
        "Out of b\x1b[31mounds\x1b[0m values : 0 OK",
    ],
)
def test_what_a_reader_may_recognise_is_not_quiet(line: str) -> None:
    assert not is_quiet(f"{_STEP}{line}\n{_STEP}")


@pytest.mark.parametrize(
    "line",
    ["", "{'loss': 2.5, 'epoch': 0.1}", '{"step": 1}', "<p>", "\x1b[32mstep: 1\x1b[0m", "12 34 56", "float 1 2 int"],
)
def test_lines_of_a_training_are_quiet(line: str) -> None:
    assert is_quiet(f"{_STEP}{line}\n{_STEP}")


def _read(blocks: list[str], is_idle: Callable[[int], bool] = lambda _: True) -> list[tuple[int, str]]:
    return list(lines_with_marks(blocks, WidthDetector(), is_idle))


def test_lines_keep_their_numbers_and_those_just_before_marks() -> None:
    mark = "# a comment\n"
    steps = [f"{number}\n" for number in range(1, 31)]
    blocks = ["".join(steps[:20]), "".join(steps[20:25]), mark + steps[0], "".join(steps)]
    assert _read(blocks) == [*enumerate(steps[13:25], 14), (26, mark), (27, "1\n")]


def test_a_quiet_block_is_read_while_a_reader_awaits_more() -> None:
    assert _read(["a\n", "b\nc\n"], lambda number: number < 2) == [(1, "a\n"), (2, "b\n"), (3, "c\n")]


def test_a_line_without_end_comes_in_pieces() -> None:
    pieces = [len(line) for _, line in numbered_lines(["a" * ((1 << 20) + 5) + "\nb"])]
    assert pieces == [1 << 20, 6, 1]
