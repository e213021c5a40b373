"""The fake NVML, for the processes of the agent."""

from __future__ import annotations

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
