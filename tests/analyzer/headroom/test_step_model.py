"""Model of a step: what host and device leave of a gain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.headroom.step_model import NO_TIME, Span, step_model
from stepscope.core.vocabulary import Change
from tests.analyzer.headroom.build import Kernel, kernels_of, step_of

ms = st.floats(0.0, 1e4)
ROWS = [Kernel("aten::mul", [[1024]], us) for us in (400.0, 300.0, 300.0)]


@given(base=st.floats(0.1, 1e4), compute=ms, lost=ms, low=ms, more=ms, exposed=ms, hidden=ms)
def test_without_a_change_the_step_is_the_measured_one(
    base: float, compute: float, lost: float, low: float, more: float, exposed: float, hidden: float
) -> None:
    lost = min(lost, base)
    step = step_model(
        kernels_of(ROWS),
        None,
        base_ms=base,
        compute_ms=compute,
        lost_ms=lost,
        host_ms=Span(low, low + more),
        exposed_ms=exposed,
        hidden_ms=hidden,
    )
    assert abs(step.step_ms.least - base) <= 1e-6 * base + 1e-9
    assert abs(step.step_ms.most - base) <= 1e-6 * base + 1e-9


@given(base=st.floats(0.1, 1e4), compute=ms, low=ms, more=ms, gone=st.sets(st.integers(0, 2)), spares=st.booleans())
def test_a_change_never_gains_more_than_the_kernels_that_go(
    base: float, compute: float, low: float, more: float, gone: set[int], spares: bool
) -> None:
    step = step_model(
        kernels_of(ROWS), None, base_ms=base, compute_ms=compute, host_ms=Span(low, low + more), spares_host=spares
    )
    after = step.after(Change.TF32_PRODUCTS, dict.fromkeys(gone, NO_TIME))
    saved_ms = float(step.most_ns[list(gone)].sum()) / 1e6
    assert after.step_ms.least <= after.step_ms.most <= base * (1 + 1e-9) + 1e-9
    if not spares:
        assert after.step_ms.least >= base - saved_ms - 1e-6 * base


def test_where_the_host_is_the_limit_shorter_kernels_gain_nothing() -> None:
    step = step_model(kernels_of(ROWS), None, base_ms=5.0, compute_ms=1.0, host_ms=Span(5.0, 5.0), spares_host=False)
    assert step.after(Change.FUSED_KERNELS, {0: NO_TIME, 1: NO_TIME}).step_ms == Span(5.0, 5.0)


def test_recorded_losses_stay() -> None:
    step = step_of(ROWS, lost_ms=10.0)
    assert step.after(Change.FUSED_KERNELS, {0: NO_TIME}).step_ms.middle > 10.0


def test_communication_that_shorter_compute_cannot_hide_is_exposed() -> None:
    step = step_model(kernels_of(ROWS), None, base_ms=10.0, compute_ms=10.0, host_ms=Span(0.0, 0.0), hidden_ms=6.0)
    after = step.after(Change.TF32_PRODUCTS, dict.fromkeys([1, 2], NO_TIME))
    assert abs(after.likely_ms - (4.0 + 6.0 - 4.0 * 2 / 3)) < 0.05
