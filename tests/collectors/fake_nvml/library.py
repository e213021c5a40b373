"""The fake libnvidia-ml.so.1: its build, and the description of its GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCES = Path(__file__).parent
SONAME = "libnvidia-ml.so.1"


def build_fake_nvml(folder: Path) -> Path:
    """Compile the library into a folder, once; its path. Skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake NVML cannot be built")
    library = folder / SONAME
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{SONAME}.{os.getpid()}"
        options = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"]
        sources = [str(path) for path in sorted(_SOURCES.glob("*.c"))]
        subprocess.run([compiler, *options, "-o", str(partial), *sources, "-lm"], check=True)
        partial.replace(library)
    return library


class FakeNvml:
    """The machine that the library tells of. Changes count once `write` is called, also for running processes."""

    def __init__(self, library: Path, config: Path) -> None:
        self.library = library
        self.config = config
        self.values: dict[str, str] = {"driver": "580.159.03", "cuda": "13000", "nvml": "13.580.159.03", "gpus": "0"}

    def environment(self) -> dict[str, str]:
        """For a process that shall load it."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_CONFIG": str(self.config)}

    def add(self, gpu: dict[str, object]) -> int:
        """One more GPU; its index."""
        index = int(self.values["gpus"])
        self.values["gpus"] = str(index + 1)
        self.set(index, **gpu)
        return index

    def set(self, index: int, **values: object) -> None:
        """Values of a GPU; None takes one away. Double underscores stand for the points in a key."""
        for name, value in values.items():
            key = f"gpu.{index}.{name.replace('__', '.')}"
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = str(value)

    def write(self) -> None:
        """Make it so."""
        partial = self.config.with_suffix(".partial")
        partial.write_text("".join(f"{key} {value}\n" for key, value in self.values.items()))
        partial.replace(self.config)
