"""CUPTI is detached after a capture where that is safe; its variable never outlives Kineto's thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepscope.training.captures.cupti as subject
from stepscope.training.captures import recording
from stepscope.training.captures.cupti import CuptiDetachment

torch = pytest.importorskip("torch")
VARIABLE = "TEARDOWN_CUPTI"


class _Kineto:
    """Kineto's thread, which begins when a recording ends and detaches CUPTI when it is let."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.threads: list[threading.Thread] = []

    def end_recording(self) -> None:
        self.threads.append(threading.Thread(target=self.may_end.wait, daemon=True))
        self.threads[-1].start()

    def detach(self) -> None:
        self.may_end.set()
        for thread in self.threads:
            thread.join()
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # a moment longer than Python's part of it
                time.sleep(0.001)


@pytest.fixture
def kineto(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Kineto]:
    """Beside a torch that looks as if built for CUDA, on a machine with a GPU."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(VARIABLE, raising=False)
    kineto = _Kineto()
    yield kineto
    kineto.detach()


def _end(detachment: CuptiDetachment, kineto: _Kineto) -> str | None:
    """End a recording; the variable as Kineto saw it."""
    with detachment.ending_recording():
        seen = os.environ.get(VARIABLE)
        kineto.end_recording()
    return seen


def test_the_variable_stands_from_the_end_of_a_recording_until_the_thread_is_gone(kineto: _Kineto) -> None:
    detachment = CuptiDetachment()
    assert VARIABLE not in os.environ
    assert _end(detachment, kineto) == "1"
    detachment.check()
    assert os.environ[VARIABLE] == "1"
    kineto.detach()
    detachment.check()
    assert VARIABLE not in os.environ


@pytest.mark.usefixtures("kineto")
def test_where_no_thread_begins_the_variable_goes_at_once() -> None:
    detachment = CuptiDetachment()
    with detachment.ending_recording():
        assert os.environ[VARIABLE] == "1"
    detachment.check()
    assert VARIABLE not in os.environ


def test_a_start_waits_until_the_thread_is_gone(kineto: _Kineto) -> None:
    detachment = CuptiDetachment()
    _end(detachment, kineto)
    timer = threading.Timer(0.05, kineto.may_end.set)
    timer.start()
    detachment.wait()
    assert kineto.may_end.is_set()
    assert VARIABLE not in os.environ


def test_a_thread_that_never_ends_is_waited_for_only_so_long(kineto: _Kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_WAIT_SECONDS", 0.05)
    detachment = CuptiDetachment()
    _end(detachment, kineto)
    began = time.monotonic()
    detachment.wait()
    detachment.wait()
    assert 0.04 <= time.monotonic() - began < 0.5
    assert VARIABLE not in os.environ


@pytest.mark.usefixtures("kineto")
def test_a_recording_that_fails_to_end_leaves_no_variable() -> None:
    detachment = CuptiDetachment()
    with pytest.raises(RuntimeError, match="theirs"), detachment.ending_recording():
        raise RuntimeError("theirs")
    detachment.wait()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("choice", ["0", "1", ""])
def test_the_user_s_choice_stays(kineto: _Kineto, monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(VARIABLE, choice)
    detachment = CuptiDetachment()
    assert _end(detachment, kineto) == choice
    kineto.detach()
    detachment.wait()
    assert os.environ[VARIABLE] == choice


@pytest.mark.parametrize(
    ("cuda", "choice", "reason"),
    [("12.4", None, "not safe before CUDA 12.6, and torch is built for CUDA 12.4"), ("12.8", "0", "=0 is set")],
)
def test_where_cupti_stays_one_line_says_why(
    kineto: _Kineto,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cuda: str,
    choice: str | None,
    reason: str,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    if choice is not None:
        monkeypatch.setenv(VARIABLE, choice)
    detachment = CuptiDetachment()
    assert [_end(detachment, kineto) for _ in range(2)] == [choice] * 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert "CUPTI stays attached" in said
    assert said.endswith(reason)


@pytest.mark.parametrize(("cuda", "is_available"), [(None, True), ("12.8", False)])
def test_without_cuda_or_a_gpu_nothing_is_done_or_said(
    kineto: _Kineto,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cuda: str | None,
    is_available: bool,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    assert _end(CuptiDetachment(), kineto) is None
    assert not caplog.records


def test_waiting_calls_cuda_only_where_training_uses_it(kineto: _Kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []

    def current_device() -> int:
        calls.append(None)
        kineto.may_end.set()
        return 0

    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    for is_initialized, seconds in ((False, 0.02), (True, 5.0)):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_so=is_initialized: is_so)
        monkeypatch.setattr(subject, "_WAIT_SECONDS", seconds)
        detachment = CuptiDetachment()
        _end(detachment, kineto)
        detachment.wait()
        assert bool(calls) is is_initialized


@pytest.mark.parametrize(("end", "num_detachments"), [("step_aside", 0), ("finish", 1)])
def test_cupti_stays_attached_for_a_profiler_that_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, num_detachments: int
) -> None:
    entered: list[None] = []

    @contextmanager
    def ending_recording() -> Iterator[None]:
        entered.append(None)
        yield

    monkeypatch.setattr(recording.DETACHMENT, "ending_recording", ending_recording)
    capture = recording.Recording(
        0, tmp_path / "rank0.json.gz", record_shapes=False, with_stack=False, profile_memory=False
    )
    capture.start()
    capture.num_whole_steps = 1
    getattr(capture, end)()
    assert len(entered) == num_detachments
