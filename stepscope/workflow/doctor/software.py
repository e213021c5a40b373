"""Which Python, stepscope and torch are here, and do they fit each other and the driver?"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from stepscope import __version__
from stepscope.core.doctor import DoctorLine, DoctorState

_EXTRAS = {
    "agent": ("pynvml", "prometheus_client"),
    "analyze": ("numpy", "msgspec", "isal", "fsspec", "rich"),
    "dashboard": ("dash", "dash_mantine_components", "uvicorn"),
    "workloads": ("torch",),
}
"""Extra -> the modules that it brings."""
_CUDA = re.compile(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", re.MULTILINE)
_HIP = re.compile(r"^hip\b[^=]*= *['\"]([\d.]+)", re.MULTILINE)
_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


@dataclass(frozen=True, slots=True)
class Torch:
    """An installed torch, told without importing it.

    Attributes:
        version: its own.
        cuda, hip: what it is built for; None where not for it.
    """

    version: str
    cuda: str | None
    hip: str | None


def look_at_python(has_module: Callable[[str], bool] | None = None) -> Iterator[DoctorLine]:
    """Python, and which parts of stepscope can run.

    Args:
        has_module: whether a module is installed.
    """
    has_module = has_module or _has_module
    yield DoctorLine("python", _OK, f"{platform.python_version()} on {platform.system()} {platform.release()}")
    there = [extra for extra, modules in _EXTRAS.items() if all(map(has_module, modules))]
    missing = [extra for extra in _EXTRAS if extra not in there]
    found = f"{__version__} with {', '.join(there) or 'no extra'}"
    if not missing:
        yield DoctorLine("stepscope", _OK, found)
        return
    advice = f'for more: pip install "stepscope[{",".join(missing)}]"'
    yield DoctorLine("stepscope", _OK, f"{found}; without {', '.join(missing)}", advice)


def look_at_pynvml(version_of: Callable[[str], str | None] | None = None) -> Iterator[DoctorLine]:
    """NVML's binding and its dead fork, of which torch warns.

    Args:
        version_of: of an installed distribution.
    """
    version_of = version_of or _version_of
    binding, fork = version_of("nvidia-ml-py"), version_of("pynvml")
    if fork is not None:
        advice = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        yield DoctorLine(
            "pynvml", _WARN, f"the abandoned package pynvml {fork} is installed; torch warns of it", advice
        )
    elif binding is None:
        advice = 'pip install "stepscope[agent]"'
        yield DoctorLine("nvidia-ml-py", _WARN, "not installed: GPUs cannot be asked through NVML", advice)
    else:
        yield DoctorLine("nvidia-ml-py", _OK, binding)


def find_torch() -> Torch | None:
    """The torch that an import would find. It is not imported: that takes seconds."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        text = ""
    cuda, hip = _CUDA.search(text), _HIP.search(text)
    return Torch(_version_of("torch") or "?", cuda[1] if cuda else None, hip[1] if hip else None)


def judge_torch(torch: Torch | None, *, driver_cuda: str, num_gpus: int) -> DoctorLine:
    """Whether torch and driver fit.

    Args:
        torch: that is installed.
        driver_cuda: the newest CUDA that the driver runs: "13.0"; empty where unknown.
        num_gpus: of NVIDIA's in this machine.
    """
    if torch is None:
        return DoctorLine(
            "torch", _WARN, "not installed: no preflight, no workloads", 'pip install "stepscope[workloads]"'
        )
    if torch.hip is not None:
        return DoctorLine("torch", _OK, f"{torch.version} for ROCm {torch.hip}")
    if torch.cuda is None:
        if num_gpus:
            advice = "install one with CUDA: https://pytorch.org/get-started/locally"
            return DoctorLine("torch", _FAIL, f"{torch.version} is built without CUDA, and here are GPUs", advice)
        return DoctorLine("torch", _OK, f"{torch.version}, built without CUDA")
    built, runs = _numbers(torch.cuda), _numbers(driver_cuda)
    found = f"{torch.version} for CUDA {torch.cuda}"
    if not runs or runs >= built:
        return DoctorLine("torch", _OK, f"{found}; the driver runs up to {driver_cuda}" if runs else found)
    found += f", the driver runs up to {driver_cuda}"
    if runs[0] < built[0]:
        advice = f"update the driver, or install a torch for CUDA {runs[0]}"
        return DoctorLine("torch", _FAIL, found, advice)
    advice = "it works, but kernels compiled at run time may not load: update the driver"
    return DoctorLine("torch", _WARN, found, advice)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _has_module(name: str) -> bool:
    return util.find_spec(name) is not None


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
