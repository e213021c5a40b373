"""Checkpoints and evaluations of a loop that does not name them are phases of its steps."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stepscope
from stepscope.core.loader_waits import Instant
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.steps import observed_phases
from stepscope.training.steps.observed_phases import ObservedCheckpoints, ObservedEvaluations
from stepscope.training.steps.telemetry import StepRecord

torch = pytest.importorskip("torch")
_SECONDS = 0.004


class _Checkpoints:
    """Phases that are opened, and a watch that opens them."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.open: list[str] = []
        self.watch = ObservedCheckpoints(self._phase, lambda: self.open)

    @contextmanager
    def _entered(self, name: str) -> Iterator[None]:
        self.open.append(name)
        try:
            yield
        finally:
            self.open.remove(name)

    def _phase(self, name: str) -> AbstractContextManager[None]:
        self.opened.append(name)
        return self._entered(name)


@pytest.fixture
def checkpoints() -> Iterator[_Checkpoints]:
    found = _Checkpoints()
    yield found
    found.watch.close()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_every_way_to_save_is_a_checkpoint(checkpoints: _Checkpoints, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import save as imported_by_name

    checkpoints.watch.look()
    torch.save({}, tmp_path / "a")
    torch.serialization.save({}, tmp_path / "b")
    dcp.save({"weight": torch.ones(2)}, checkpoint_id=tmp_path / "c", no_dist=True)  # type: ignore[attr-defined]
    assert checkpoints.opened == ["checkpoint"] * 3
    imported_by_name({"weight": torch.ones(2)}, checkpoint_id=tmp_path / "d", no_dist=True)
    assert (tmp_path / "d" / ".metadata").exists()
    assert not checkpoints.open


def test_bytes_of_checkpoints_are_known_where_all_are_files_by_name(checkpoints: _Checkpoints, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1000)}, tmp_path / "a")
    with checkpoints._entered("my_checkpoint"):  # the training code's own phase
        torch.save({}, f=str(tmp_path / "b"))
    record = StepRecord(0, 0)
    checkpoints.watch.steps_ended([record])
    assert record.figures == {"checkpoint_bytes": sum((tmp_path / name).stat().st_size for name in "ab")}
    assert checkpoints.opened == ["checkpoint"]
    torch.save({}, tmp_path / "c")
    torch.save({}, io.BytesIO())
    unknown = StepRecord(1, 0, figures={"loss": 1.0})
    checkpoints.watch.steps_ended([unknown])
    assert unknown.figures == {"loss": 1.0}


def test_safetensors_is_seen_also_under_a_name_of_another_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    theirs: Any = ModuleType("theirs")
    theirs.safe_save_file = safetensors.save_file
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    fresh = _Checkpoints()
    theirs.safe_save_file({"weight": torch.ones(2)}, tmp_path / "a.safetensors")
    assert fresh.opened == ["checkpoint"]
    fresh.watch.close()
    theirs.safe_save_file({"weight": torch.ones(2)}, tmp_path / "a.safetensors")
    assert fresh.opened == ["checkpoint"]


def test_a_checkpoint_in_a_phase_of_that_name_or_on_another_thread_is_not_told_twice(
    checkpoints: _Checkpoints, tmp_path: Path
) -> None:
    checkpoints.open.append("Save_Checkpoint")
    torch.save({}, tmp_path / "a")
    checkpoints.open.clear()
    thread = threading.Thread(target=torch.save, args=({}, tmp_path / "b"))
    thread.start()
    thread.join()
    assert not checkpoints.opened
    assert (tmp_path / "b").exists()


def test_a_save_that_fails_fails_as_before_and_the_next_is_seen(checkpoints: _Checkpoints, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="nowhere"):
            torch.save({}, tmp_path / "nowhere" / "a")
    assert checkpoints.opened == ["checkpoint"] * 2


def test_what_was_watched_is_torch_s_own_again() -> None:
    save, evaluate, train, backward = torch.save, torch.nn.Module.eval, torch.nn.Module.train, torch.Tensor.backward
    loader_methods = torch.utils.data.DataLoader.__iter__
    checkpoints, evaluations = _Checkpoints(), ObservedEvaluations(_Clock().now, ObservedSettings(MemoryOwners()))
    torch.nn.Linear(2, 2).eval()
    assert torch.save is not save
    checkpoints.watch.close()
    evaluations.close()
    assert (torch.save, torch.nn.Module.eval, torch.nn.Module.train) == (save, evaluate, train)
    assert (torch.Tensor.backward, torch.utils.data.DataLoader.__iter__) == (backward, loader_methods)


class _Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.ns = 0

    def monotonic_ns(self) -> int:
        return self.ns

    def now(self) -> Instant:
        return Instant(self.ns)

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


class _Loop:
    """A training loop without stepscope in it, on a clock of its own."""

    def __init__(self, clock: _Clock) -> None:
        self.clock = clock
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        self.watch = ObservedEvaluations(clock.now, ObservedSettings(MemoryOwners()))

    def train(self) -> None:
        self.model(torch.ones(4, 2)).sum().backward()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(4, 2))
        self.clock.sleep(_SECONDS)

    def end_step(self, **phases: int) -> float | None:
        """Seconds of the evaluations of the step that ends, None without one."""
        record = StepRecord(0, 0, 1, phases=phases)
        self.watch.steps_ended([record])
        found = record.phases.get("evaluation")
        return None if found is None else found / 1e9


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Loop]:
    clock = _Clock()
    monkeypatch.setattr(observed_phases, "time", clock)
    found = _Loop(clock)
    yield found
    found.watch.close()


def test_from_eval_to_train_is_an_evaluation(loop: _Loop) -> None:
    loop.train()
    assert loop.end_step() is None
    loop.model.eval()
    loop.evaluate()
    loop.model.train()
    loop.clock.sleep(5 * _SECONDS)
    loop.train()
    assert loop.end_step() == _SECONDS
    loop.train()
    assert loop.end_step() is None


def test_a_model_with_an_eval_of_its_own_is_seen_too(loop: _Loop) -> None:
    class Model(torch.nn.Linear):  # type: ignore[name-defined, misc]  # as that of transformers
        def eval(self) -> Any:
            return self.train(False)

    model = Model(2, 2)
    model.eval()
    loop.evaluate()
    model.train()
    assert loop.end_step() == _SECONDS


def test_an_evaluation_at_the_end_of_a_step_counts_for_it(loop: _Loop) -> None:
    loop.train()
    loop.model.eval()
    loop.evaluate()
    assert loop.end_step() == _SECONDS
    loop.model.train()
    loop.train()
    assert loop.end_step() is None


def test_parts_or_teachers_in_evaluation_mode_are_none(loop: _Loop) -> None:
    teacher = torch.nn.Linear(2, 2)
    for _ in range(2):
        teacher.eval()
        loop.model[1].eval()  # frozen statistics
        loop.evaluate()
        loop.train()
        loop.model.train()
        assert loop.end_step() is None


def test_a_switch_of_modes_alone_is_none(loop: _Loop) -> None:
    loop.model.eval()
    loop.model.train()
    assert loop.end_step() is None


def test_one_that_the_training_code_names_is_not_told_twice(loop: _Loop) -> None:
    loop.model.eval()
    loop.evaluate()
    loop.model.train()
    assert loop.end_step(validation=5) is None


@pytest.mark.parametrize("is_named", [False, True])
def test_a_checkpoint_inside_of_an_evaluation_is_no_part_of_it(loop: _Loop, is_named: bool) -> None:
    record = StepRecord(0, 0, 1)
    began = loop.clock.now()
    loop.model.eval()
    loop.evaluate()
    record.add_phase("forward", (began, loop.clock.now()))
    saving = loop.clock.now()
    loop.clock.sleep(_SECONDS)
    record.add_phase("checkpoint", (saving, loop.clock.now()))
    loop.model.train()
    if is_named:
        record.add_phase("validation", (began, loop.clock.now()))
    loop.watch.steps_ended([record])
    name = "validation" if is_named else "evaluation"
    assert record.phases.keys() == {name, "forward", "checkpoint"}
    assert record.phases[name] == _SECONDS * 1e9
    assert sum(ended.ns - began.ns for began, ended in record.phase_intervals[name]) == record.phases[name]


@pytest.mark.parametrize("learns", [False, True], ids=["no_grad", "with gradients"])
def test_the_wait_for_the_next_batch_to_learn_from_is_no_evaluation(loop: _Loop, learns: bool) -> None:
    loader = torch.utils.data.DataLoader([torch.ones(2)] * 2)
    batches = iter(loader)
    next(batches)
    loop.train()
    loop.end_step()
    loop.model.eval()
    with torch.set_grad_enabled(learns):
        for _ in torch.utils.data.DataLoader([torch.ones(2)] * 3):
            loop.clock.sleep(_SECONDS)
    next(batches)
    loop.clock.sleep(20 * _SECONDS)  # as the first batch of an epoch takes
    loop.model.train()
    loop.train()
    assert loop.end_step() == 3 * _SECONDS


def test_a_loader_read_without_gradients_is_an_evaluation_in_any_mode(loop: _Loop) -> None:
    with torch.no_grad():
        for _ in torch.utils.data.DataLoader([torch.ones(2)] * 3):
            loop.clock.sleep(_SECONDS)
    loop.train()
    assert loop.end_step() == 3 * _SECONDS


class _SlowRows(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Rows that take a second each."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self._clock.sleep(1.0)
        return torch.ones(2)


@pytest.mark.parametrize("is_timed", [False, True])
def test_waits_for_batches_to_learn_from_are_told_where_nobody_times_them(loop: _Loop, is_timed: bool) -> None:
    loop.watch._is_timed = lambda: is_timed
    batches = iter(torch.utils.data.DataLoader(_SlowRows(loop.clock), batch_size=2))
    waits = []
    for _ in range(3):
        next(batches)
        loop.train()
        loop.clock.sleep(5.0)
        record = StepRecord(0, 0, 1)
        loop.watch.steps_ended([record])
        waits.append(record.data_wait_ns / 1e9)
    assert waits == [0.0 if is_timed else 2.0] * 3


def test_a_wait_that_is_told_is_not_told_twice(loop: _Loop) -> None:
    next(iter(torch.utils.data.DataLoader(_SlowRows(loop.clock))))
    loop.train()
    record = StepRecord(0, 0, 1, data_wait_ns=7)
    loop.watch.steps_ended([record])
    assert record.data_wait_ns == 7


def test_an_error_of_a_loader_passes_and_the_next_wait_is_seen(loop: _Loop) -> None:
    class Broken(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            raise LookupError("broken")

    for _ in range(2):
        with pytest.raises(LookupError, match="broken"):
            list(torch.utils.data.DataLoader(Broken()))
    test_a_loader_read_without_gradients_is_an_evaluation_in_any_mode(loop)


def _train_with_profile(out: Path, after_step: Callable[[Any, int], None]) -> list[dict[str, Any]]:
    import json

    model = torch.nn.Linear(2, 2)
    with stepscope.profile("r", out, stepscope.every(10**6)) as prof:
        for step in range(4):
            model.train()
            model(torch.ones(4, 2)).sum().backward()
            prof.step()
            after_step(model, step)
    return [json.loads(line) for line in (out / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]


def test_profile_sees_both(tmp_path: Path) -> None:
    def after_step(model: Any, step: int) -> None:
        if step == 1:
            model.eval()
            with torch.no_grad():
                model(torch.ones(4, 2))
            time.sleep(_SECONDS)
            torch.save(model.state_dict(), tmp_path / "model.pt")

    lines = _train_with_profile(tmp_path, after_step)
    assert [sorted(line["phases"]) for line in lines] == [[], [], ["checkpoint", "evaluation"], []]
    assert lines[2]["phases"]["evaluation"] >= _SECONDS * 1e9
