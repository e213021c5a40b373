from __future__ import annotations

from dataclasses import replace

from stepscope.analyzer.blame.straggler_reasons import why_slower
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import KernelTime
from stepscope.core.causes import Reason
from stepscope.core.headings import Heading

Kernels = dict[str, tuple[int, float]]
USUAL: Kernels = {"gemm": (100, 200.0), "norm": (50, 25.0), "add": (200, 40.0)}


def reasons(view: RankView, late: Kernels, *peers: Kernels) -> list[Reason]:
    def with_kernels(rank: int, kernels: Kernels) -> RankView:
        times = [KernelTime(n, count, ms, Heading.COMPUTE_BOUND, "model") for n, (count, ms) in kernels.items()]
        return replace(view, rank=rank, kernels=times)

    others = [with_kernels(rank, kernels) for rank, kernels in enumerate(peers, 1)]
    return why_slower([with_kernels(0, late)], others)[0]


def test_kernels_that_the_peers_do_not_run_are_extra_work(view: RankView) -> None:
    assert reasons(view, USUAL | {"eigh": (3, 90.0)}, USUAL, USUAL) == [Reason.EXTRA_WORK]


def test_more_and_heavier_kernels_of_a_known_name_are_extra_work_too(view: RankView) -> None:
    assert reasons(view, USUAL | {"gemm": (160, 500.0)}, USUAL) == [Reason.EXTRA_WORK]


def test_all_kernels_slower_alike_is_a_low_clock(view: RankView) -> None:
    slow = {name: (count, ms * 1.4) for name, (count, ms) in USUAL.items()}
    assert reasons(view, slow, USUAL, USUAL) == [Reason.LOW_CLOCK]


def test_one_kernel_slower_is_no_low_clock(view: RankView) -> None:
    assert reasons(view, USUAL | {"gemm": (100, 320.0)}, USUAL) == [Reason.SLOWER_KERNELS]


def test_without_recorded_kernels_nothing_is_told(view: RankView) -> None:
    assert reasons(view, {}, USUAL) == []
    assert reasons(view, USUAL, {}) == []


def test_a_rank_that_is_no_slower_has_no_reason(view: RankView) -> None:
    assert reasons(view, USUAL, USUAL) == []
