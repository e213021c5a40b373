"""Communication faults act where communication is visible, and leave gradients unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.gradients import GradientRecorder, largest_deviation, read_gradients
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


@pytest.mark.gpu
def test_on_gpus_too_gradients_are_whole_when_the_backward_pass_has_ended(job_of: Jobs, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    plan = ParallelPlan(dp=2, zero=0)
    preset = TinyBuckets().control(job_of(dp=2, zero=0)).preset
    found = []
    for name, faults in (("whole", ()), ("cut", (TinyBuckets(),))):
        (tmp_path / name).mkdir()
        recorder = GradientRecorder(str(tmp_path / name))
        # A control's control is another model, so the fault's preset goes in as the layout's own.
        given = preset if name == "whole" else job_of(dp=2, zero=0).preset
        run_workload(plan, preset=given, profiled=False, num_steps=1, device="cuda", injections=[*faults, recorder])
        found.append(read_gradients(tmp_path / name))
    assert largest_deviation(found[1], found[0]) < 1e-2  # bfloat16's products differ in order; half a sum by half


def test_on_gpus_the_last_piece_stands_for_all_and_on_cpu_none_does() -> None:
    torch = pytest.importorskip("torch")
    futures = [torch.futures.Future() for _ in range(3)]
    assert communication._of_all(futures, on_gpu=True) is futures[-1]
    of_all = communication._of_all(futures, on_gpu=False)
    for future in reversed(futures):
        assert not of_all.done()
        future.set_result(None)
    assert of_all.done()
