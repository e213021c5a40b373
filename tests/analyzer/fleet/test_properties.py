"""Properties of every GPU: more work never makes it idle, and a missing figure is never 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.fleet import GpuSample, HostUse, classify_gpu
from stepscope.core.documents.jobs import FLEET_CAUSES
from stepscope.core.vocabulary import Cause
from tests.analyzer.fleet.samples import H100, SPINNING, series

_ratio = st.floats(0, 1)
_bytes = st.floats(0, 100e9)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_samples = st.builds(
    GpuSample,
    time_ns=st.just(0),
    utilization=_maybe(_ratio),
    memory_busy=_maybe(_ratio),
    power_watts=_maybe(st.floats(50, 700)),
    clock_hertz=_maybe(st.floats(2e8, 2e9)),
    throttle_reasons=_maybe(st.frozensets(st.sampled_from(["idle", "software_power_cap", "hardware_thermal"]))),
    engine=_maybe(_ratio),
    sm=_maybe(_ratio),
    tensor=_maybe(_ratio),
    dram=_maybe(_ratio),
    vector=_maybe(_ratio),
    link_bytes=_maybe(_bytes),
    pcie_transmit=_maybe(_bytes),
    pcie_receive=_maybe(_bytes),
    memory_used=_maybe(st.floats(0, 80e9)),
    num_processes=_maybe(st.integers(0, 3)),
)
_hosts = st.builds(
    HostUse,
    cpus=_maybe(st.floats(0, 8)),
    stopped_cpus=_maybe(_ratio),
    io_wait=_maybe(_ratio),
    network_bytes=_maybe(_bytes),
)


@given(_samples, _samples, _hosts)
def test_any_samples_have_a_class(one: GpuSample, other: GpuSample, host: HostUse) -> None:
    told = classify_gpu(series(one, other, count=20), H100, host)
    assert told.cause in FLEET_CAUSES
    assert 0 <= told.confidence <= 1
    if told.shares is not None:
        shares = told.shares
        assert (shares.computing is None) == (shares.waiting is None)
        known = [
            share for share in (shares.computing, shares.waiting, shares.copying, shares.empty) if share is not None
        ]
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in known)
        assert shares.computing is None or abs(sum(known) - 1) < 1e-6


@given(_samples, st.floats(0, 1), st.floats(0, 1))
def test_more_tensor_activity_and_power_never_make_a_gpu_idle(sample: GpuSample, tensor: float, power: float) -> None:
    before = classify_gpu(series(sample, count=20), H100)
    more = replace(
        sample,
        tensor=None if sample.tensor is None else min(1.0, sample.tensor + tensor),
        power_watts=None if sample.power_watts is None else min(700.0, sample.power_watts + 600 * power),
    )
    after = classify_gpu(series(more, count=20), H100)
    assert (
        after.cause is not Cause.IDLE
        or before.cause in (Cause.IDLE, Cause.CHECKPOINT, Cause.COPY)
        or _stuck(before, after)
    )


@given(_samples, st.booleans())
def test_one_sample_of_work_among_those_that_poll_is_no_hang(sample: GpuSample, computes: bool) -> None:
    working = replace(sample, tensor=0.01) if computes else replace(sample, dram=0.01)
    assert classify_gpu(series(*[SPINNING] * 59, working), H100).cause is not Cause.HANG


def _stuck(before: Any, after: Any) -> bool:
    """A utilisation that nothing else confirms is not believed, whatever was told of it before."""
    return any(one.metric == "utilization_stuck" for told in (before, after) for one in told.evidence)


@given(_samples, st.sets(st.sampled_from(["engine", "sm", "tensor", "dram", "vector", "utilization"])))
def test_no_gpu_that_draws_power_is_idle_whatever_is_missing(sample: GpuSample, missing: set[str]) -> None:
    """Facts 0.3: a page without profiling counters, 125 W and more, was called idle."""
    nothing: dict[str, Any] = dict.fromkeys(missing)
    told = classify_gpu(series(replace(sample, power_watts=400.0, **nothing), count=20), H100)
    assert told.cause is not Cause.IDLE


@given(_samples, st.sampled_from(["engine", "sm", "tensor", "dram", "link_bytes", "pcie_transmit", "pcie_receive"]))
def test_a_missing_figure_is_not_zero(sample: GpuSample, name: str) -> None:
    """Nothing that is known makes a GPU idle or hang because something else is not known."""
    known = replace(sample, utilization=0.6, engine=0.6, power_watts=300.0, num_processes=1)
    if classify_gpu(series(known, count=70), H100).cause not in (Cause.IDLE, Cause.HANG):
        nothing: dict[str, Any] = {name: None}
        assert classify_gpu(series(replace(known, **nothing), count=70), H100).cause not in (Cause.IDLE, Cause.HANG)
