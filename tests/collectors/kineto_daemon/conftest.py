"""Folders with names short enough for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collectors.kineto_daemon import backend, server

PATIENT_SECONDS = 1.0


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs many tests may wake the server late; then no question would be answered."""
    monkeypatch.setattr(server, "_TOO_LATE_SECONDS", PATIENT_SECONDS)


@pytest.fixture(autouse=True)
def no_capture_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """No capture from before a restart, so that no process is waited for."""
    monkeypatch.setattr(backend, "_GATHERING_SECONDS", 0.0)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for sockets, whose names may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ks") as name:
        yield Path(name)
