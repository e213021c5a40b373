"""Out of memory: all files are written, whether the error is caught or not."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.training.memory import snapshots
from stepscope.training.memory.snapshots import MemoryOptions, parse_memory_option, training_phase
from tests.training.fake_device_memory import FakeDeviceMemory
from tests.training.full_disk import run_with_file_limit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_job")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeDeviceMemory:
    monkeypatch.delenv("STEPSCOPE_MEMORY", raising=False)
    return FakeDeviceMemory().install(monkeypatch)


def _report(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "r" / "memory" / "rank0-oom.json").read_text())
    return report


def _files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out / "r")) for path in (out / "r" / "memory").rglob("*") if path.is_file())


def test_the_moment_is_written_before_anything_is_unwound(
    tmp_path: Path, memory: FakeDeviceMemory, caplog: pytest.LogCaptureFixture
) -> None:
    activation = torch.ones(1000)
    memory.hold([activation])

    def train_step() -> None:
        memory.run_out(2 << 30)

    def train() -> None:
        with stepscope.profile("r", tmp_path) as prof:
            prof.step(memory_allocated_bytes=7, loss=1.0)
            with prof.phase("long batch"):
                train_step()

    with pytest.raises(torch.OutOfMemoryError):
        train()
    report = _report(tmp_path)
    assert (report["schema"], report["step"], report["rank"]) == ("stepscope.oom/1", 1, 0)
    assert (report["taken"], report["device"], report["requested_bytes"]) == ("at the allocation", 0, 2 << 30)
    assert (report["device_total_bytes"], report["device_free_bytes"]) == (80 << 30, 1 << 20)
    assert report["allocated_bytes"] == memory.allocated_bytes()
    assert report["open_spans"] == ["ProfilerStep#1", "prof.phase: long batch"]
    assert report["recent_steps"][-1]["step"] == 0
    assert report["recent_steps"][-1]["memory_allocated_bytes"] == 7
    assert [frame["name"] for frame in report["stack"]][:3] == ["run_out", "train_step", "train"]
    assert report["main_stack"] == report["stack"]
    assert report["categories"]["other"]["bytes"] == memory.allocated_bytes()
    assert report["snapshot"] == "rank0-oom.pickle"
    assert pickle.loads((tmp_path / "r" / "memory" / "rank0-oom.pickle").read_bytes()) == memory.snapshot()
    assert _files(tmp_path) == ["memory/rank0-oom.json", "memory/rank0-oom.pickle"]
    assert len([each for each in caplog.records if "memory ran out in step 1" in each.getMessage()]) == 1


def test_training_that_catches_it_goes_on_and_is_not_held_up_again_and_again(
    tmp_path: Path, memory: FakeDeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_MIN_PAUSE", 1e9)
    with stepscope.profile("r", tmp_path) as prof:
        for attempt in range(5):
            with pytest.raises(torch.OutOfMemoryError):
                memory.run_out(100 + attempt)
            prof.step()
    assert _report(tmp_path)["requested_bytes"] == 100
    assert json.loads((tmp_path / "r" / "run.json").read_text())["attempts"][0]["ended"] == "finished"


def test_the_one_that_ends_training_is_written_even_soon_after_another(
    tmp_path: Path, memory: FakeDeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_MIN_PAUSE", 1e9)

    def train() -> None:
        with stepscope.profile("r", tmp_path) as prof:
            with pytest.raises(torch.OutOfMemoryError):
                memory.run_out(100)
            prof.step()
            memory.run_out(200)

    with pytest.raises(torch.OutOfMemoryError):
        train()
    report = _report(tmp_path)
    assert (report["taken"], report["step"]) == ("after unwinding", 1)
    assert "Tried to allocate 200 bytes" in report["message"]
    assert [frame["name"] for frame in report["stack"]][:2] == ["run_out", "train"]


def test_where_torch_has_no_observer_the_error_that_leaves_is_seen(
    tmp_path: Path, memory: FakeDeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "attach_oom_observer", lambda _: False)

    def train() -> None:
        with stepscope.profile("r", tmp_path):
            memory.run_out(100)

    with pytest.raises(torch.OutOfMemoryError):
        train()
    assert _report(tmp_path)["snapshot"] == "rank0-oom.pickle"


@pytest.mark.parametrize("memory_option", ["oom", "oom+history"])
def test_a_first_step_that_is_the_first_to_use_cuda_is_seen_as_it_fails(
    tmp_path: Path, memory: FakeDeviceMemory, memory_option: str
) -> None:
    memory.is_in_use = False
    recorded = []

    def train() -> None:
        with stepscope.profile("r", tmp_path, memory=memory_option):
            memory.begin_use()
            recorded.append(memory.history)
            memory.run_out(100)

    with pytest.raises(torch.OutOfMemoryError):
        train()
    report = _report(tmp_path)
    assert (report["taken"], report["step"], report["requested_bytes"]) == ("at the allocation", 0, 100)
    assert recorded == [report["has_history"]] == [memory_option == "oom+history"]
    assert not memory.history


def test_cuda_is_waited_for_once_and_not_after_the_run_nor_on_another_thread(
    tmp_path: Path, memory: FakeDeviceMemory
) -> None:
    memory.is_in_use = False
    with stepscope.profile("r", tmp_path, memory="oom+history") as prof:
        for _ in range(3):
            prof.step()
        elsewhere = threading.Thread(target=memory.awaiting[0])
        elsewhere.start()
        elsewhere.join()
        assert (len(memory.awaiting), memory.observers, memory.history) == (1, [], False)
    memory.begin_use()
    assert (memory.observers, memory.history) == ([], False)


def test_what_fails_within_the_first_use_of_cuda_does_not_reach_training(
    tmp_path: Path, memory: FakeDeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.is_in_use = False

    def fail(_: object) -> bool:
        raise RuntimeError("not this allocator")

    monkeypatch.setattr(snapshots, "attach_oom_observer", fail)
    with stepscope.profile("r", tmp_path):
        memory.begin_use()


def test_torch_is_asked_to_call_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", asked.append)
    assert snapshots.when_cuda_is_used(asked.clear)
    assert asked == [asked.clear]
    monkeypatch.delattr(torch.cuda, "_lazy_call")
    assert not snapshots.when_cuda_is_used(asked.clear)


def test_other_errors_and_runs_without_a_gpu_write_nothing(tmp_path: Path, memory: FakeDeviceMemory) -> None:
    def train(error: Exception) -> None:
        with stepscope.profile("r", tmp_path):
            raise error

    with pytest.raises(KeyError):
        train(KeyError("mine"))
    memory.is_in_use = False
    with pytest.raises(torch.OutOfMemoryError):
        train(torch.OutOfMemoryError("of something else"))
    assert not (tmp_path / "r" / "memory").exists()


def test_several_runs_of_a_process_share_one_observer_and_none_is_told_when_none_runs(
    tmp_path: Path, memory: FakeDeviceMemory
) -> None:
    for _ in range(3):
        with stepscope.profile("r", tmp_path) as prof:
            prof.step()
    assert len(memory.observers) == 1
    with pytest.raises(torch.OutOfMemoryError):
        memory.run_out(1)
    assert not (tmp_path / "r" / "memory").exists()


def test_history_is_recorded_while_the_run_lasts_and_only_on_request(tmp_path: Path, memory: FakeDeviceMemory) -> None:
    recorded = []
    for memory_option in ("oom", "oom+history"):
        with stepscope.profile("r", tmp_path, memory=memory_option):
            recorded.append(memory.history)
        recorded.append(memory.history)
    assert recorded == [False, False, True, False]


def test_what_cannot_be_written_costs_one_warning_and_the_error_stays_the_users(
    tmp_path: Path, memory: FakeDeviceMemory, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        with stepscope.profile("r", tmp_path):
            (tmp_path / "r" / "memory").write_text("a file")
            memory.run_out(1)

    with pytest.raises(torch.OutOfMemoryError):
        train()
    warnings = [each.getMessage() for each in caplog.records if "memory ran out" in each.getMessage()]
    assert len(warnings) == 1
    assert "could not be written" in warnings[0]


_TOO_LARGE = """
import json, pathlib, sys, pytest, stepscope, torch
from tests.training.fake_device_memory import FakeDeviceMemory
memory = FakeDeviceMemory().install(pytest.MonkeyPatch())
memory.hold([torch.ones(2) for _ in range(5000)])
try:
    with stepscope.profile("r", sys.argv[1]):
        memory.run_out(1)
except torch.OutOfMemoryError:
    pass
print(sorted(path.name for path in pathlib.Path(sys.argv[1], "r", "memory").iterdir()))
print(json.loads(pathlib.Path(sys.argv[1], "r", "memory", "rank0-oom.json").read_text())["snapshot"])
"""


def test_a_snapshot_that_finds_no_room_is_not_there_by_half_and_the_state_still_is(tmp_path: Path) -> None:
    assert run_with_file_limit(100_000, _TOO_LARGE, str(tmp_path)).splitlines() == ["['rank0-oom.json']", "None"]


def test_snapshots_at_every_so_many_steps_say_whose_each_block_is(tmp_path: Path, memory: FakeDeviceMemory) -> None:
    model = torch.nn.Linear(64, 32)
    memory.hold(model.parameters())
    with stepscope.profile("r", tmp_path, memory=2) as prof:
        prof.watch(model)
        for _ in range(6):
            prof.step()
    assert _files(tmp_path) == [f"memory/step{step}/rank0.{kind}" for step in (2, 4) for kind in ("json", "pickle")]
    owners = json.loads((tmp_path / "r" / "memory" / "step4" / "rank0.json").read_text())
    assert (owners["schema"], owners["step"]) == ("stepscope.memory_owners/1", 4)
    assert owners["categories"]["parameters"]["bytes"] == memory.allocated_bytes()
    assert owners["categories"]["other"]["bytes"] == 0
    assert pickle.loads((tmp_path / "r" / "memory" / "step2" / "rank0.pickle").read_bytes()) == memory.snapshot()
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines if "memory_snapshot_ns" in line] == [2, 4]


def test_off_watches_nothing(tmp_path: Path, memory: FakeDeviceMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_MEMORY", "off")
    with stepscope.profile("r", tmp_path) as prof:
        prof.step()
        prof.step()
    assert memory.observers == []
    assert not (tmp_path / "r" / "memory").exists()


def test_what_the_call_says_comes_before_the_environment(
    tmp_path: Path, memory: FakeDeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_MEMORY", "off")
    with stepscope.profile("r", tmp_path, memory=1) as prof:
        prof.step()
        prof.step()
    assert _files(tmp_path) == ["memory/step1/rank0.json", "memory/step1/rank0.pickle"]
    assert len(memory.observers) == 1


@pytest.mark.parametrize(
    ("memory", "plan"),
    [
        ("oom", MemoryOptions()),
        ("off", MemoryOptions(when_out=False)),
        ("oom+history", MemoryOptions(history=True)),
        (500, MemoryOptions(every=500)),
        ("500+HISTORY", MemoryOptions(every=500, history=True)),
    ],
)
def test_plans(memory: str | int, plan: MemoryOptions) -> None:
    assert parse_memory_option(memory) == plan


@pytest.mark.parametrize("wrong", ["", "on", 0, -3, "off+history", True, None, "+history", "²"])
def test_what_is_no_plan(wrong: Any) -> None:
    with pytest.raises(ValueError, match="memory is"):
        parse_memory_option(wrong)


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        ([("_multi_tensor_adam", "/a/torch/optim/adam.py"), ("step", "/a/torch/optim/optimizer.py")], "optimizer"),
        ([("_engine_run_backward", "/a/torch/autograd/graph.py"), ("backward", "/a/torch/_tensor.py")], "backward"),
        ([("forward", "/a/torch/nn/modules/linear.py"), ("train", "train.py")], "forward"),
        ([("backward", "mine.py")], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_part_of_the_step_is_read_from_the_stack(stack: list[tuple[str, str]], phase: str) -> None:
    assert training_phase([{"name": name, "filename": filename, "line": 1} for name, filename in stack]) == phase


def test_torchs_own_observer_is_called_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    attached: list[Callable[..., None]] = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False)
    assert snapshots.attach_oom_observer(snapshots._observe)
    attached[0](0, 1, 2, 3)  # nobody runs, nothing happens
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer")
    assert not snapshots.attach_oom_observer(snapshots._observe)


def test_the_run_goes_on_quietly(tmp_path: Path, memory: FakeDeviceMemory, caplog: pytest.LogCaptureFixture) -> None:
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        prof.step()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING and "memory" in each.getMessage()] == []
    assert len(memory.observers) == 1
