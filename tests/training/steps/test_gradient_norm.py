"""Gradient norm of each rank before reduction, and watching leaves training unchanged."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stepscope
from stepscope.training.steps import gradients
from stepscope.training.steps.gradients import LocalGradientNorm
from stepscope.training.steps.scalars import DeviceScalarReader
from stepscope.training.steps.telemetry import StepRecord
from tests.training.fake_device import FakeDevice

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, dict[str, list[float]]]]]:
    """The folder of runs, and what each rank computed."""
    folder = tmp_path_factory.mktemp("two_ranks")
    script = Path(__file__).with_name("two_ranks_train.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return folder, [json.loads(output) for output in outputs]


@pytest.mark.parametrize("way", ["ddp", "ddp_bucket_view", "fully_shard"])
def test_ranks_tell_the_norm_of_what_they_computed_themselves(two_ranks: Any, way: str) -> None:
    folder, computed = two_ranks
    own, reduced = ([rank[way][kind] for rank in computed] for kind in ("own", "reduced"))
    assert reduced[0] == pytest.approx(reduced[1], rel=1e-5)
    for rank in range(2):
        lines = _lines(folder / way / "steps" / f"rank{rank}.jsonl")
        assert [line["index"] for line in lines if "local_grad_norm" in line] == [2]
        assert lines[2]["local_grad_norm"] == pytest.approx(own[rank][2], rel=1e-5)
    assert own[0][2] != pytest.approx(own[1][2], rel=1e-3)
    assert own[0][2] != pytest.approx(reduced[0][2], rel=1e-3)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _sampled(norm: LocalGradientNorm, index: int, backward: Any, duration_ns: int = 10**9) -> StepRecord:
    record = StepRecord(index, 0, duration_ns)
    norm.step_began(index)
    backward()
    norm.steps_ended([record])
    return record


def _weights() -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1, bias=False)
    return model, lambda: (3 * model.weight[0, 0] + 4 * model.weight[0, 1]).backward()


def test_sampled_steps_alone_carry_hooks_and_the_first_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_HOST_SHARE", 1e9)
    model, backward = _weights()
    norm = LocalGradientNorm(DeviceScalarReader(), is_quiet=lambda index: index != 6)
    norm.watch(model, every=3)
    for index in range(10):
        norm.step_began(index)
        assert bool(model.weight._post_accumulate_grad_hooks) == (index in {3, 9})
        model.zero_grad()
        backward()
        record = StepRecord(index, 0, 10)
        norm.steps_ended([record])
        assert record.figures == ({"local_grad_norm": pytest.approx(5.0)} if index in {3, 9} else {})
        assert not model.weight._post_accumulate_grad_hooks
    norm.close()


def test_what_micro_batches_accumulate_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_HOST_SHARE", 1e9)
    (model, backward), (other, backward_other) = _weights(), _weights()
    norm = LocalGradientNorm(DeviceScalarReader(), is_quiet=lambda _: True)
    norm.watch(model, every=1)
    norm.watch(other, every=1)
    record = _sampled(norm, 1, lambda: [backward(), backward(), backward_other()])
    assert record.figures == {"local_grad_norm": pytest.approx(math.hypot(10, 5))}


def test_the_loss_scale_is_divided_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_HOST_SHARE", 1e9)
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.0), torch.amp.GradScaler("cpu", init_scale=256.0)
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        prof.watch(model, every=1)
        for factor in (1.0, 1.0, float("inf")):
            optimizer.zero_grad()
            scaler.scale(model(torch.tensor([3.0, 4.0])).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            prof.step()
    lines = _lines(tmp_path / "r" / "steps" / "rank0.jsonl")
    assert "local_grad_norm" not in lines[0]
    assert lines[1]["local_grad_norm"] == pytest.approx(5.0)
    assert lines[2]["local_grad_norm"] is None
    assert lines[2]["non_finite"] == ["local_grad_norm"]


def test_on_a_gpu_it_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(device, "holds", lambda _: True)
    model, backward = _weights()
    norm = LocalGradientNorm(DeviceScalarReader(device), is_quiet=lambda _: True)
    norm.watch(model, every=1)
    record = _sampled(norm, 1, backward)
    assert record.figures == {}
    record.figures["loss_scale"] = 10.0  # is deferred as well, and comes before
    device.run()
    assert record.deferred[0].are_there()
    assert record.deferred[0].read() == {"local_grad_norm": pytest.approx(0.5)}


def test_sampling_becomes_rarer_where_it_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 50_000)  # 50 us from one look at it to the next
    monkeypatch.setattr(gradients, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    model, backward = _weights()
    norm = LocalGradientNorm(DeviceScalarReader(), is_quiet=lambda _: True)
    norm.watch(model, every=5)
    assert _sampled(norm, 5, backward, duration_ns=10**12).figures
    assert norm._interval == 5
    assert _sampled(norm, 10, backward, duration_ns=10_000_000).figures
    assert norm._spent_ns == 150_000
    assert norm._interval == 20  # 150 us are 0.08 % of 20 steps of 9.85 ms, and 0.15 % of 10


def test_gradients_of_every_make_are_measured() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    half = torch.nn.Linear(300, 300, bias=False, dtype=torch.float16)
    norm = LocalGradientNorm(DeviceScalarReader(), is_quiet=lambda _: True)
    for model in (table, half):
        norm.watch(model, every=1)
    record = _sampled(
        norm,
        1,
        lambda: [
            (table(torch.tensor([1, 1])) * torch.tensor([3.0, 4.0])).sum().backward(),
            (half.weight * 300).sum().backward(),  # its square is more than float16 can hold
        ],
    )
    assert record.figures["local_grad_norm"] == pytest.approx(math.hypot(10, 300 * 300), rel=1e-3)


def test_an_error_while_watching_never_reaches_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(gradients, "_norm", fail)
    model, backward = _weights()
    norm = LocalGradientNorm(DeviceScalarReader(), is_quiet=lambda _: True)
    norm.watch(model, every=1)
    assert [_sampled(norm, index, backward).figures for index in (1, 2)] == [{}, {}]
    assert [record.getMessage() for record in caplog.records] == [
        "stepscope goes on without local_grad_norm: RuntimeError: no such operator"
    ]


@pytest.mark.usefixtures("one_rank_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore:The `NO_SHARD`", "ignore:FSDP.* deprecated")
def test_what_cannot_be_watched_is_said_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = torch.nn.Linear(2, 1)
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        prof.watch(FullyShardedDataParallel(torch.nn.Linear(2, 1), device_id=torch.device("cpu")))
        prof.watch(model, every=0)
        prof.watch(3)
        prof.step(loss=1.0)
    messages = [record.getMessage() for record in caplog.records if "prof.watch" in record.getMessage()]
    assert len(messages) == 3
    assert "fully_shard does not" in messages[0]
    assert [line["loss"] for line in _lines(tmp_path / "r" / "steps" / "rank0.jsonl")] == [1.0]


def test_compiled_models_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_HOST_SHARE", 1e9)
    testing = pytest.importorskip("torch._dynamo.testing")
    backend = testing.CompileCounterWithBackend("aot_eager")
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    compiled = torch.compile(model, backend=backend)
    norm = LocalGradientNorm(DeviceScalarReader(), is_quiet=lambda _: True)
    norm.watch(compiled, every=2)
    found = [
        _sampled(norm, index, lambda: compiled(torch.ones(3, 2)).sum().backward()).figures.get("local_grad_norm")
        for index in range(1, 7)
    ]
    assert [value is not None for value in found] == [False, True] * 3
    assert backend.frame_count == 1


def test_gradients_that_only_waiting_would_tell_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(4, 4, device="meta")
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        prof.watch(model, every=1)
        for _ in range(5):
            model(torch.empty(2, 4, device="meta")).sum().backward()
            prof.step()
    lines = _lines(tmp_path / "r" / "steps" / "rank0.jsonl")
    assert [line["index"] for line in lines] == list(range(5))
    assert not any("local_grad_norm" in line for line in lines)
    (said,) = [record.getMessage() for record in caplog.records if "goes on without" in record.getMessage()]
    assert said.endswith("gradients on meta cannot be read without waiting for it")
