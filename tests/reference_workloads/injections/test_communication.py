"""Do the faults of communication go where communication can be seen, and leave gradients as they are?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.injections import communication
from stepscope.reference_workloads.injections.communication import NoOverlap, NoPrefetch, TinyBuckets, WrongTransport
from stepscope.reference_workloads.job import TrainingJob

Jobs = Callable[..., TrainingJob]


def test_control_and_fault_have_the_same_model_with_fewer_tokens_for_its_parameters(job_of: Jobs) -> None:
    job = job_of(dp=2, zero=0)
    control = NoOverlap().control(job)
    assert NoOverlap().change(control).preset == control.preset
    assert (
        control.preset.num_layers * control.preset.hidden_size**2 == job.preset.num_layers * job.preset.hidden_size**2
    )
    assert (control.preset.batch_size, control.preset.sequence_length) == (2, 2048)
    control.plan.check_preset(control.preset)


@pytest.mark.parametrize(
    ("fault", "arguments", "reason"),
    [
        (TinyBuckets(), {"dp": 2, "zero": 2}, "zero 0 or 1"),
        (TinyBuckets(), {"tp": 2}, "dp > 1"),
        (NoOverlap(), {"dp": 2, "device_type": "cpu"}, "GPUs"),
        (NoPrefetch(), {"dp": 2, "zero": 2}, "zero 3"),
        (WrongTransport(), {"pp": 2}, "dp > 1 or tp > 1"),
    ],
)
def test_refused_where_it_means_nothing(job_of: Jobs, fault: Any, arguments: dict[str, Any], reason: str) -> None:
    assert reason in (fault.refusal(job_of(**arguments)) or "")


def test_tensor_parallel_traffic_is_large_as_it_is(job_of: Jobs) -> None:
    job = job_of(tp=2)
    assert WrongTransport().control(job) == job
    assert WrongTransport().environment(job) == {"NCCL_P2P_DISABLE": "1"}


def test_gradients_in_small_pieces_are_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(TinyBuckets, "needs", ())
    monkeypatch.setattr(communication, "_communicating", lambda job: job)
    plan = ParallelPlan(dp=2, zero=0)
    whole, cut = (
        run_workload(plan, profiled=False, num_steps=3, device="cpu", injections=faults).losses
        for faults in ((), (TinyBuckets(message_mb=0.01),))
    )
    assert cut == pytest.approx(whole, abs=1e-5)
