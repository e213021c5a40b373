"""Calls in which a host waits for its device are known by their bytecode."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from stepscope.training.hangs.device_wait import device_wait_call, waiting_call


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("model(batch.to(WAIT)).sum()", "to"),
        ("x = 1 + batch.grad.norm().item(WAIT) * 2", "item"),
        ("(batch\n    .norm()\n    .item(\n        WAIT))", "item"),
        ("batch.synchronize(WAIT)", "synchronize"),
        ("batch.cpu(*[WAIT])", "cpu"),
        ("float(WAIT)", "float"),
        ("if WAIT:\n    pass", "bool"),
        ("while not WAIT:\n    pass", "bool"),
        ("model(WAIT)", ""),
        ("batch.norm().acquire(WAIT)", ""),
        ("item(WAIT)", ""),
        ("batch.float(WAIT)", ""),
    ],
)
def test_the_call_that_a_thread_stands_in(code: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, gate = _standing(code)
    try:
        assert waiting_call(frame) == name
        for is_initialized in (True, False):
            cuda = SimpleNamespace(is_initialized=lambda is_true=is_initialized: is_true)
            monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
            assert device_wait_call([frame]) == (name if is_initialized else "")
            assert device_wait_call([]) == ""
    finally:
        gate.release()


def _standing(code: str) -> tuple[FrameType, Any]:
    """Frame of a thread that stands in a call written in C, where the code has WAIT; releasing the lock ends it."""
    gate = threading.Lock()
    gate.acquire()
    wait = type("Wait", (), {"__bool__": gate.acquire})()
    names: dict[str, Any] = {"WAIT": wait, "batch": _Batch(), "model": bool, "float": bool, "item": bool}
    lines = f"def stand():\n  try:\n{textwrap.indent(code, '    ')}\n  except (AttributeError, TypeError):\n    pass"
    exec(compile(lines, "train.py", "exec"), names)
    thread = threading.Thread(target=names["stand"], daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None and frame.f_code.co_name == "stand" and gate.locked():
            time.sleep(0.02)
            return frame, gate
    raise AssertionError("the thread does not stand")


class _Batch:
    """Its methods are C functions that wait for what they are given."""

    to = item = cpu = synchronize = acquire = float = bool

    @property
    def grad(self) -> _Batch:
        return self

    def norm(self) -> _Batch:
        return self
