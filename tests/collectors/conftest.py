"""The fake NVML, for a test that collects in its own process."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from stepscope.collectors.nvml import library
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built library."""
    return build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml")


@pytest.fixture
def nvml(fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A machine without GPUs, which the binding asks in this process."""
    fake = FakeNvml(fake_nvml_library, tmp_path / "nvml.conf")
    fake.write()
    monkeypatch.setenv("FAKE_NVML_CONFIG", str(fake.config))
    monkeypatch.setattr(library, "LIBRARY", str(fake_nvml_library))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake
