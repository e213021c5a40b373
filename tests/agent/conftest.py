"""The fake NVML, for the processes of the agent, and a place for its socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> FakeNvml:
    """A machine without GPUs yet."""
    library = build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml")
    fake = FakeNvml(library, tmp_path / "nvml.conf")
    fake.write()
    return fake


@pytest.fixture
def place() -> Iterator[Path]:
    """A path short enough for a socket: the kernel takes 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
    yield folder / "agent.sock"
    shutil.rmtree(folder)
