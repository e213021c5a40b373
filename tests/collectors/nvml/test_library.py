"""The calls of NVML that are bound here are those of nvidia-ml-py: structures, values and errors."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pynvml
import pytest

from stepscope.collectors.nvml import library
from stepscope.collectors.nvml.binding import nvml_library, nvml_text
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

_STRUCTURES = {
    library.Utilization: pynvml.c_nvmlUtilization_t,
    library.Memory: pynvml.c_nvmlMemory_t,
    library.MemoryV2: pynvml.c_nvmlMemory_v2_t,
    library.Bar1Memory: pynvml.c_nvmlBAR1Memory_t,
    library.PciInfo: pynvml.nvmlPciInfo_t,
    library.ProcessInfo: pynvml.c_nvmlProcessInfo_v2_t,
    library.ProcessUtilization: pynvml.c_nvmlProcessUtilizationSample_t,
    library.EventData: pynvml.c_nvmlEventData_t,
    library.FieldValue: pynvml.c_nvmlFieldValue_t,
    library.RowRemapperHistogram: pynvml.c_nvmlRowRemapperHistogramValues,
    library.SramErrors: pynvml.c_nvmlEccSramErrorStatus_v1_t,
    library.FabricInfo: pynvml.c_nvmlGpuFabricInfo_v2_t,
    library.FabricInfoV3: pynvml.c_nvmlGpuFabricInfo_v3_t,
    library.MarginTemperature: pynvml.c_nvmlMarginTemperature_v1_t,
    library.GpmSupport: pynvml.c_nvmlGpmSupport_t,
    library.GpmMetrics: pynvml.c_nvmlGpmMetricsGet_t,
}


@pytest.mark.parametrize(("ours", "theirs"), _STRUCTURES.items(), ids=lambda one: one.__name__)
def test_structures_have_the_layout_of_nvidia_ml_py(
    ours: type[ctypes.Structure], theirs: type[ctypes.Structure]
) -> None:
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    places = [[(name, getattr(kind, name).offset) for name, *_ in kind._fields_] for kind in (ours, theirs)]
    assert places[0] == places[1]


def test_a_gpm_metric_has_the_layout_of_nvidia_ml_py() -> None:
    ours, theirs = library.GpmMetric, pynvml.c_nvmlGpmMetric_t
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    for name in ("metricId", "nvmlReturn", "value"):
        assert getattr(ours, name).offset == getattr(theirs, name).offset


_ARGUMENTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetNvLinkState"), (1,)),
    **dict.fromkeys(("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold"), (0,)),
    **dict.fromkeys(("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetNvLinkErrorCounter"), (1, 0)),
}
_ASKED_OTHERWISE = (
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlSystem",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandle",
    "nvmlEvent",
    "nvmlGpmSample",
)
_OF_A_GPU = [
    name
    for name in (*library.NUMBERS, *library.STRUCTURES, *library.TEXTS, *library.PROCESS_LISTS)
    if not name.startswith(_ASKED_OTHERWISE)
]


def _plain(answer: object) -> object:
    if isinstance(answer, ctypes.Structure):
        return {name: nvml_text(getattr(answer, name)) for name, *_ in answer._fields_}
    if hasattr(answer, "__dict__"):
        return {name: str(value) for name, value in vars(answer).items()}
    return [_plain(one) for one in answer] if isinstance(answer, (list, tuple)) else nvml_text(answer)


def _answer_of(module: object, name: str, *arguments: object) -> object:
    try:
        return _plain(getattr(module, name)(*arguments))
    except (pynvml.NVMLError, library.NvmlError) as error:
        return f"error {error.value}"


@pytest.mark.parametrize("name", sorted(_OF_A_GPU))
def test_calls_answer_as_those_of_nvidia_ml_py(nvml: FakeNvml, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml.library)))
    ours, further = nvml_library(), _ARGUMENTS.get(name, ())
    ours.nvmlInit()
    handle = ours.nvmlDeviceGetHandleByIndex(0)
    found = _answer_of(ours, name, handle, *further)
    assert found == _answer_of(pynvml, name, pynvml.nvmlDeviceGetHandleByIndex(0), *further)
    assert _answer_of(ours, name, ours.nvmlDeviceGetHandleByIndex(0), *further) == found
    ours.nvmlShutdown()


@pytest.mark.parametrize("counts_succeed", [0, 1])
def test_lists_are_read_whatever_the_call_for_their_number_returns(nvml: FakeNvml, counts_succeed: int) -> None:
    """The driver gives the number with an error, as NVML's header says; NVIDIA's mocknvml gives it with success."""
    nvml.add({**profiles.h100(0), "compute__count": 2, "use__count": 1, "retired__0": 3})
    nvml.set(0, compute__0__pid=11, compute__0__memory=5, compute__1__pid=12, use__0__pid=11, use__0__sm=97)
    nvml.values["counts_succeed"] = str(counts_succeed)
    nvml.write()
    ours = nvml_library()
    ours.nvmlInit()
    handle = ours.nvmlDeviceGetHandleByIndex(0)
    processes = ours.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    assert [(one.pid, one.usedGpuMemory) for one in processes] == [(11, 5), (12, 2**64 - 1)]
    assert len(ours.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)) == 0
    assert [(one.pid, one.smUtil) for one in ours.nvmlDeviceGetProcessUtilization(handle, 0)] == [(11, 97)]
    assert ours.nvmlDeviceGetRetiredPages(handle, 0) == [0, 0, 0]
    ours.nvmlShutdown()


def test_polling_loads_nothing_of_nvidia_ml_py(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    code = (
        "import sys; from stepscope.collectors.nvml.collector import NvmlCollector; c = NvmlCollector(); c.collect(); "
    )
    code += "print(len(c.collect().readings), 'pynvml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=nvml.environment()
    )
    count, is_loaded = done.stdout.split()
    assert int(count) > 80
    assert is_loaded == "False"
