"""What only a read of the host needs is found in loops of reads, and nothing of a model's own work."""

from __future__ import annotations

import pytest

from stepscope.analyzer.what_if.light_capture import Kind, LightCapture
from stepscope.analyzer.what_if.light_replay import LightReplay
from stepscope.analyzer.what_if.planned_calls import Removal
from tests.analyzer.build import COMPUTE_STREAM, GEMM, TraceBuilder

_ABS = "void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor<float>>(int)"
_SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)"
_READ = "Memcpy DtoH (Device -> Pageable)"
_LAYER = [GEMM, GEMM, "void at::native::vectorized_layer_norm_kernel<float>(int)"]


def _capture(names: list[str], *, steps: int = 3, num_bytes: int = 4) -> LightCapture:
    """Kernels of 10 us launched every 12 us, and reads, on one stream."""
    trace = TraceBuilder()
    now, ends = 1_000, [1_000]
    for _ in range(steps):
        for name in names:
            begin, end = now + 9, now + 20
            if name == _READ:
                trace.copy(begin, end, launch=now, launch_end=end + 1, stream=COMPUTE_STREAM)
                trace._rows[-1].num_bytes = num_bytes
            else:
                trace.kernel(begin, end, launch=now, launch_end=now + 5, name=name)
            now = end + 2
        ends.append(now * 1_000)
    return LightCapture(trace.build(), [1_000_000, *ends[1:]])


def _launched_for_reads(capture: LightCapture) -> int:
    return sum(len(call.works) for call in capture.calls if call.kind & Kind.FOR_READ)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (_LAYER * 5 + [_ABS, _SUM, _READ] * 4, 12),  # parameters one by one; also the first, behind the layers
        ([*_LAYER, _ABS, _SUM, _READ] * 4, 0),  # nowhere alone: what is a layer's and what the read's is unknown
        ([*_LAYER, _SUM, _READ, _SUM, _READ, _SUM, _READ] * 2, 12),  # a layer's read ends as the others do
        (_LAYER * 4 + [_SUM, _READ], 0),  # one read a step is no loop
        (_LAYER * 2 + [_SUM] * 20 + [_READ], 0),
        (_LAYER * 4, 0),
    ],
)
def test_what_is_launched_for_reads(names: list[str], expected: int) -> None:
    assert _launched_for_reads(_capture(names, steps=3)) == pytest.approx(3 * expected, abs=3)


def test_copies_of_data_are_no_reads() -> None:
    assert not _launched_for_reads(_capture([*_LAYER, *[_ABS, _READ] * 4], num_bytes=1 << 20))


def test_without_the_reads_their_kernels_and_the_time_between_are_gone() -> None:
    layers = LightReplay([_capture(_LAYER * 5)])
    reading = LightReplay([_capture(_LAYER * 5 + [_ABS, _SUM, _READ] * 6)])
    assert reading.replayed_ms(0.0) > 1.5 * layers.replayed_ms(0.0)
    assert reading.replayed_ms(0.0, Removal.BLOCKING_CALLS) == pytest.approx(layers.replayed_ms(0.0), rel=0.05)


@pytest.mark.parametrize(("num_pairs", "is_gone"), [(5, True), (2, False)])
def test_the_time_between_many_reads_in_a_row_is_for_them(num_pairs: int, is_gone: bool) -> None:
    reading = _capture(_LAYER * 5 + [_SUM, _READ, _ABS, _SUM, _READ] * num_pairs)
    kept = [call for call in reading.calls if call.works and not call.kind & Kind.FOR_READ]
    assert len(kept) == 3 * (15 + num_pairs)
    assert sum(call.kind & Kind.GAP_FOR_READ > 0 for call in kept) == is_gone * 3 * num_pairs
